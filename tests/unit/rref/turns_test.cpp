// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/turns.h"

#include <gtest/gtest.h>

namespace weft::detail {
namespace {

TEST(TurnsTest, OneAtATimeInOrder) {
  Turns turns;
  const Turns::Turn first = turns.take(), second = turns.take(), third = turns.take();
  EXPECT_FALSE(first.comes);
  ASSERT_TRUE(second.comes && third.comes);
  EXPECT_FALSE(second.comes->ready());
  turns.end(first.number);
  EXPECT_TRUE(second.comes->ready());
  EXPECT_FALSE(third.comes->ready());
  turns.end(second.number);
  EXPECT_TRUE(third.comes->ready());
  turns.end(third.number);
  EXPECT_FALSE(turns.take().comes);
}

TEST(TurnsTest, WhoLeavesBeforeItsTurnEndsNobodyElses) {
  Turns turns;
  const Turns::Turn first = turns.take(), second = turns.take(), third = turns.take();
  turns.end(second.number);
  EXPECT_FALSE(third.comes->ready());
  turns.end(first.number);
  EXPECT_TRUE(third.comes->ready());
}

}  // namespace
}  // namespace weft::detail

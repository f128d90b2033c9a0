// SPDX-License-Identifier: BSD-3-Clause
#include "rref/reply_holds.h"

#include <gtest/gtest.h>

namespace weft::rref {
namespace {

using namespace std::chrono_literals;

struct Thing final : detail::RefCounted {};

class ReplyHoldsTest : public testing::Test {
 protected:
  void add(Worker receiver, base::Time until) {
    holds_.add(receiver, kId, detail::make_ref<Thing>(), until);
  }
  static constexpr RRefId kId{1, 1, 0, 1};
  const base::Time now_{1h};
  ReplyHolds holds_;
  std::vector<ReplyHolds::Handle> let_go_;
};

TEST_F(ReplyHoldsTest, AnAcceptanceEndsOneHoldOfThatReceiver) {
  add(2, now_ + 10s);
  add(2, now_ + 10s);
  add(3, now_ + 10s);
  holds_.end_one(2, kId, let_go_);
  EXPECT_EQ(let_go_.size(), 1u);
  holds_.end_one(4, kId, let_go_);
  EXPECT_EQ(let_go_.size(), 1u);
  holds_.end_all(let_go_);
  EXPECT_EQ(let_go_.size(), 3u);
}

TEST_F(ReplyHoldsTest, AnAcceptanceEndsTheEarliestHold) {
  add(2, now_ + 5s);
  add(2, now_ + 3s);
  add(2, now_ + 9s);
  holds_.end_one(2, kId, let_go_);
  holds_.expire(now_ + 4s, let_go_);
  EXPECT_EQ(let_go_.size(), 1u);
  holds_.end_one(2, kId, let_go_);
  holds_.expire(now_ + 8s, let_go_);
  EXPECT_EQ(let_go_.size(), 2u);
  holds_.expire(now_ + 9s, let_go_);
  EXPECT_EQ(let_go_.size(), 3u);
}

TEST_F(ReplyHoldsTest, WhatIsNotAcceptedExpires) {
  add(2, now_ + 10s);
  add(3, now_ + 5s);
  EXPECT_EQ(holds_.next(), now_ + 5s);
  holds_.expire(now_ + 4s, let_go_);
  EXPECT_TRUE(let_go_.empty());
  holds_.expire(now_ + 5s, let_go_);
  EXPECT_EQ(let_go_.size(), 1u);
  EXPECT_EQ(holds_.next(), now_ + 10s);
  holds_.expire(now_ + 10s, let_go_);
  EXPECT_EQ(let_go_.size(), 2u);
  EXPECT_EQ(holds_.next(), base::Time::max());
}

}  // namespace
}  // namespace weft::rref

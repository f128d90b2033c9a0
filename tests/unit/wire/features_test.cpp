// SPDX-License-Identifier: BSD-3-Clause
#include "wire/features.h"

#include <gtest/gtest.h>

namespace weft::wire {
namespace {

constexpr Feature kFirst{0};

constexpr auto kOfALaterVersion = static_cast<Feature>(63);

TEST(Features, AreNoneAtFirst) {
  EXPECT_EQ(Features().bits(), 0u);
  EXPECT_FALSE(Features().has(kFirst));
}

TEST(Features, HaveTheBitOfTheirNumber) {
  EXPECT_EQ(Features().with(kFirst).bits(), 1u);
  EXPECT_EQ(Features().with(kOfALaterVersion).bits(), uint64_t{1} << 63);
  EXPECT_TRUE(Features(1).has(kFirst));
  EXPECT_FALSE(Features(2).has(kFirst));
}

TEST(Features, InCommonAreThoseThatBothHave) {
  const Features ours = Features().with(kFirst);

  EXPECT_EQ(ours.common_with(Features(~uint64_t{0})), ours);
  EXPECT_EQ(ours.common_with(Features().with(kOfALaterVersion)), Features());
  EXPECT_EQ(ours.common_with(Features()), Features());
}

}  // namespace
}  // namespace weft::wire

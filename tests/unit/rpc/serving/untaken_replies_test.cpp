// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/untaken_replies.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

constexpr size_t kLimit = UntakenReplies::kUnsentRepliesBeforePause;

TEST(UntakenReplies, AllConnectionsOfACallerCount) {
  UntakenReplies all;
  UntakenReplies::Share first(all), second(all);

  EXPECT_TRUE(first.set(kLimit).reads);
  EXPECT_FALSE(all.too_many());
  EXPECT_FALSE(second.set(1).reads);
  EXPECT_TRUE(all.too_many());
  EXPECT_FALSE(first.set(kLimit).reads);
}

TEST(UntakenReplies, AConnectionWithoutAnyIsRead) {
  UntakenReplies all;
  UntakenReplies::Share first(all), second(all);
  first.set(2 * kLimit);

  EXPECT_TRUE(second.set(0).reads);
  EXPECT_FALSE(second.set(1).reads);
  EXPECT_TRUE(second.set(0).reads);
}

TEST(UntakenReplies, EachCrossingOfTheLimitIsTold) {
  UntakenReplies all;
  UntakenReplies::Share first(all), second(all);

  EXPECT_FALSE(first.set(kLimit).crossed);
  EXPECT_TRUE(second.set(1).crossed);
  EXPECT_FALSE(second.set(2).crossed);
  EXPECT_TRUE(first.set(0).crossed);
  EXPECT_FALSE(second.set(0).crossed);
  EXPECT_FALSE(all.too_many());
}

}  // namespace
}  // namespace weft::rpc

// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/untaken_replies.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

constexpr size_t kLimit = UntakenReplies::kUnsentRepliesBeforePause;

TEST(UntakenReplies, AllConnectionsOfACallerCount) {
  UntakenReplies all;
  UntakenReplies::Share first(all), second(all);

  EXPECT_TRUE(first.set(kLimit));
  EXPECT_FALSE(second.set(1));
  EXPECT_FALSE(first.set(kLimit));
  EXPECT_TRUE(second.set(0));
  EXPECT_TRUE(first.set(kLimit));
}

TEST(UntakenReplies, AConnectionWithoutAnyGoesOn) {
  UntakenReplies all;
  UntakenReplies::Share first(all), second(all);
  first.set(2 * kLimit);

  EXPECT_TRUE(second.set(0));
  EXPECT_FALSE(second.set(1));
  EXPECT_TRUE(second.set(0));
}

TEST(UntakenReplies, NoneAreLeftWhenAllAreTaken) {
  UntakenReplies all;
  UntakenReplies::Share first(all), second(all);
  first.set(2 * kLimit);
  second.set(3);
  first.set(1);
  second.set(kLimit);

  EXPECT_TRUE(all.too_many());
  first.set(0);
  EXPECT_FALSE(all.too_many());
  EXPECT_TRUE(second.set(kLimit));
}

}  // namespace
}  // namespace weft::rpc

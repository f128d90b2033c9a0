// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/placement.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

constexpr Others kNone{false, false}, kCome{true, true}, kRunning{false, true};

TEST(Placement, AFunctionThatHasNeverRunRunsHere) {
  EXPECT_EQ(place(0ns, kNone), Placement::kHere);
  EXPECT_EQ(place(0ns, kCome), Placement::kHere);
}

TEST(Placement, OnlyFunctionsKnownToBeShortNeedNoSlot) {
  EXPECT_TRUE(needs_slot(0ns));
  EXPECT_FALSE(needs_slot(1ns));
  EXPECT_FALSE(needs_slot(4us));
  EXPECT_TRUE(needs_slot(5us));
}

TEST(Placement, OfSeveralCallsTheLongerOnesRunElsewhereAndTheLastHere) {
  EXPECT_EQ(place(4us, kCome), Placement::kHere);
  EXPECT_EQ(place(6us, kCome), Placement::kElsewhere);
  EXPECT_EQ(place(6us, kRunning), Placement::kHere);
  EXPECT_EQ(place(6us, kNone), Placement::kHere);
}

TEST(Placement, OfACallerWithSeveralThreadsLongFunctionsRunElsewhere) {
  EXPECT_EQ(place(50us, kCome), Placement::kElsewhere);
  EXPECT_EQ(place(50us, kRunning), Placement::kElsewhere);
  EXPECT_EQ(place(50us, kNone), Placement::kHere);
}

TEST(Placement, WhereNoOtherThreadMayRunACallThisOneDoes) {
  constexpr Others kSaturated{true, true, /*have_slots=*/false};
  EXPECT_EQ(place(6us, kSaturated), Placement::kHere);
  EXPECT_EQ(place(400us, kSaturated), Placement::kHere);
  EXPECT_EQ(place(2ms, kSaturated), Placement::kElsewhere);
}

TEST(Placement, WhereManyCpusHaveWorkOnlyLongerFunctionsAreWorthALook) {
  EXPECT_FALSE(worth_a_look(19us, 1, 16));
  EXPECT_TRUE(worth_a_look(20us, 1, 16));
  EXPECT_TRUE(worth_a_look(20us, 8, 16));
  EXPECT_FALSE(worth_a_look(20us, 9, 16));
  EXPECT_FALSE(worth_a_look(99us, 16, 16));
  EXPECT_TRUE(worth_a_look(100us, 16, 16));
  EXPECT_FALSE(worth_a_look(20us, 1, 1));
}

TEST(Placement, ALongFunctionDoesNotHoldUpTheOtherConnections) {
  EXPECT_EQ(place(2ms, kNone), Placement::kHereWithoutLead);
  EXPECT_EQ(place(2ms, kCome), Placement::kElsewhere);
}

}  // namespace
}  // namespace weft::rpc

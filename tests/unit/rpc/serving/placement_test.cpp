// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/placement.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

constexpr Others kNone{false, false}, kCome{true, true}, kRunning{false, true};

TEST(Placement, AFunctionThatHasNeverRunRunsHere) {
  EXPECT_EQ(place(0ns, kWorthAnotherThread, kNone), Placement::kHere);
  EXPECT_EQ(place(0ns, kWorthAnotherThread, kCome), Placement::kHere);
}

TEST(Placement, OnlyFunctionsKnownToBeShortNeedNoSlot) {
  EXPECT_TRUE(needs_slot(0ns));
  EXPECT_FALSE(needs_slot(1ns));
  EXPECT_FALSE(needs_slot(4us));
  EXPECT_TRUE(needs_slot(5us));
}

TEST(Placement, OfSeveralCallsTheLongerOnesRunElsewhereAndTheLastHere) {
  EXPECT_EQ(place(4us, kWorthAnotherThread, kCome), Placement::kHere);
  EXPECT_EQ(place(6us, kWorthAnotherThread, kCome), Placement::kElsewhere);
  EXPECT_EQ(place(6us, kWorthAnotherThread, kRunning), Placement::kHere);
  EXPECT_EQ(place(6us, kWorthAnotherThread, kNone), Placement::kHere);
}

TEST(Placement, WhereAnotherThreadCostsMoreOnlyLongerFunctionsRunElsewhere) {
  using detail::Makes;
  constexpr base::Duration kUsual = kWorthAnotherThread, kMore = kWorthReadingOn;

  EXPECT_EQ(worth_another_thread(16, Makes::kNothing), kUsual);
  EXPECT_EQ(worth_another_thread(3, Makes::kNothing), kUsual);
  EXPECT_EQ(worth_another_thread(2, Makes::kNothing), kMore);  // the caller has one of them
  EXPECT_EQ(worth_another_thread(1, Makes::kNothing), kMore);
  EXPECT_EQ(worth_another_thread(16, Makes::kObject), kMore);  // the next call needs the object

  EXPECT_EQ(place(19us, kMore, kCome), Placement::kHere);
  EXPECT_EQ(place(20us, kMore, kCome), Placement::kElsewhere);
}

TEST(Placement, OfACallerWithSeveralThreadsLongFunctionsRunElsewhere) {
  EXPECT_EQ(place(50us, kWorthAnotherThread, kCome), Placement::kElsewhere);
  EXPECT_EQ(place(50us, kWorthAnotherThread, kRunning), Placement::kElsewhere);
  EXPECT_EQ(place(50us, kWorthAnotherThread, kNone), Placement::kHere);
}

TEST(Placement, WhereNoOtherThreadMayRunACallThisOneDoes) {
  constexpr Others kSaturated{true, true, /*have_slots=*/false};
  EXPECT_EQ(place(6us, kWorthAnotherThread, kSaturated), Placement::kHere);
  EXPECT_EQ(place(400us, kWorthAnotherThread, kSaturated), Placement::kHere);
  EXPECT_EQ(place(2ms, kWorthAnotherThread, kSaturated), Placement::kElsewhere);
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
  EXPECT_EQ(place(2ms, kWorthAnotherThread, kNone), Placement::kHereWithoutLead);
  EXPECT_EQ(place(2ms, kWorthAnotherThread, kCome), Placement::kElsewhere);
}

}  // namespace
}  // namespace weft::rpc

// The window of all connections to a member.
// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/calling/shared_window.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

constexpr size_t kMax = 1 << 20;
constexpr size_t kLarge = kMax / 8;
constexpr size_t kSmall = 100;
using Lacks = SharedWindow::Lacks;
constexpr int kHere = 1, kElsewhere = 2;  // connections
constexpr base::Time kStart{std::chrono::hours(1)};
constexpr base::Time kImpatient = kStart + SharedWindow::kPatience;

TEST(SharedWindowTest, LimitsTheBytesOfLargeCallsAtDepthZero) {
  SharedWindow window(kMax);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(window.try_open(0, kLarge));
  EXPECT_FALSE(window.try_open(0, kLarge));
  EXPECT_TRUE(window.try_open(0, 100)) << "small calls are not counted";
  EXPECT_TRUE(window.try_open(1, kLarge)) << "nor are those of functions";
  window.close(0, kLarge, true);
  EXPECT_TRUE(window.try_open(0, kLarge));
}

TEST(SharedWindowTest, ACallLargerThanTheWindowGoesAlone) {
  SharedWindow window(kMax);
  EXPECT_TRUE(window.try_open(0, 3 * kMax));
  EXPECT_FALSE(window.try_open(0, kLarge));
  window.close(0, 3 * kMax, true);
  EXPECT_TRUE(window.try_open(0, kLarge));
}

TEST(SharedWindowTest, TellsThoseWhoWaitOnceThereIsAmpleRoom) {
  SharedWindow window(kMax);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(window.try_open(0, kLarge));
  const SharedWindow::Waiter waiter(window, 0, kLarge, &kHere, kStart);
  const uint32_t sign = waiter.sign();
  window.close(0, kLarge, true);
  EXPECT_EQ(waiter.sign(), sign) << "an eighth is free";
  window.close(0, kLarge, /*has_ample_room_here=*/false);
  EXPECT_EQ(waiter.sign(), sign) << "but not at the connection";
  window.close(0, kLarge, true);
  EXPECT_NE(waiter.sign(), sign);
}

TEST(SharedWindowTest, ASignThatCameMeanwhileEndsTheWait) {
  SharedWindow window(kMax);
  SharedWindow::Waiter waiter(window, 0, kLarge, &kHere, kStart);
  const uint32_t sign = waiter.sign();
  window.notify();
  waiter.wait(sign, base::Time::max());
}

TEST(SharedWindowTest, AWaiterThatLosesPatienceClaimsTheRoomOfItsDepth) {
  SharedWindow window(kMax);
  {
    SharedWindow::Waiter waiter(window, 1, kLarge, &kHere, kStart);
    EXPECT_FALSE(waiter.claims(Lacks::kHere, kStart));
    EXPECT_FALSE(window.is_claimed(1, kLarge, &kHere));

    EXPECT_TRUE(waiter.claims(Lacks::kHere, kImpatient));
    EXPECT_TRUE(window.is_claimed(1, kLarge, &kHere));
    EXPECT_FALSE(window.is_claimed(0, kLarge, &kHere))
        << "calls of other depths may be what it waits for";
    EXPECT_FALSE(window.is_claimed(2, kLarge, &kHere));
  }
  EXPECT_FALSE(window.is_claimed(1, kLarge, &kHere)) << "it has its room, or has given up";
}

TEST(SharedWindowTest, OnlyCallsThatTakeTheClaimedRoomHoldBack) {
  SharedWindow window(kMax);
  SharedWindow::Waiter waiter(window, 0, kLarge, &kHere, kStart);

  ASSERT_TRUE(waiter.claims(Lacks::kHere, kImpatient));
  EXPECT_TRUE(window.is_claimed(0, kLarge, &kHere));
  EXPECT_FALSE(window.is_claimed(0, kSmall, &kHere)) << "small calls go on";
  EXPECT_FALSE(window.is_claimed(0, kLarge, &kElsewhere));

  ASSERT_TRUE(waiter.claims(Lacks::kAtMember, kImpatient));
  EXPECT_TRUE(window.is_claimed(0, kLarge, &kElsewhere));
  EXPECT_FALSE(window.is_claimed(0, kSmall, &kElsewhere));
}

TEST(SharedWindowTest, ASmallCallClaimsNothing) {
  SharedWindow window(kMax);
  SharedWindow::Waiter waiter(window, 0, kSmall, &kHere, kStart);
  EXPECT_FALSE(waiter.claims(Lacks::kHere, kStart + std::chrono::hours(1)));
  EXPECT_FALSE(window.is_claimed(0, kLarge, &kHere));
}

// Four threads with calls of an eighth take what is free again and again; one call needs it all.
TEST(SharedWindowTest, ACallThatNeedsAllRoomGetsItWhileSmallerOnesGoOn) {
  SharedWindow window(kMax);
  SharedWindow::Waiter waiter(window, 0, kLarge, &kHere, kStart);
  size_t out = 0;
  bool has_room = false;
  base::Time now = kStart;
  for (int i = 0; i < 100 && !has_room; ++i, now += std::chrono::milliseconds(1)) {
    while (out < 4 && !window.is_claimed(0, kLarge, &kElsewhere) && window.try_open(0, kLarge))
      ++out;
    const bool claims = waiter.claims(Lacks::kAtMember, now);
    has_room = claims && window.try_open(0, kMax);
    if (!has_room && out > 0) {  // one is answered
      window.close(0, kLarge, true);
      --out;
    }
  }
  EXPECT_TRUE(has_room);
}

TEST(SharedWindowTest, WaitersClaimOneAfterTheOther) {
  SharedWindow window(kMax);
  std::optional<SharedWindow::Waiter> first(std::in_place, window, 0, kLarge, &kHere, kStart);
  std::optional<SharedWindow::Waiter> second(std::in_place, window, 0, kLarge, &kHere, kStart);
  SharedWindow::Waiter third(window, 0, kLarge, &kHere, kStart);
  SharedWindow::Waiter deeper(window, 1, kLarge, &kHere, kStart);
  EXPECT_TRUE(first->claims(Lacks::kHere, kImpatient));
  EXPECT_FALSE(second->claims(Lacks::kHere, kImpatient));
  EXPECT_FALSE(third.claims(Lacks::kHere, kImpatient));
  EXPECT_TRUE(deeper.claims(Lacks::kHere, kImpatient));

  second.reset();  // it gives up
  EXPECT_FALSE(third.claims(Lacks::kHere, kImpatient));
  first.reset();

  EXPECT_TRUE(third.claims(Lacks::kHere, kImpatient));
  EXPECT_TRUE(deeper.claims(Lacks::kHere, kImpatient));
}

TEST(SharedWindowTest, AClaimerIsToldOfAnyRoom) {
  SharedWindow window(kMax);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(window.try_open(0, kLarge));
  SharedWindow::Waiter waiter(window, 0, kLarge, &kHere, kStart);
  ASSERT_TRUE(waiter.claims(Lacks::kAtMember, kImpatient));
  const uint32_t sign = waiter.sign();

  window.close(0, kLarge, false);

  EXPECT_NE(waiter.sign(), sign);
}

TEST(SharedWindowTest, WhenAClaimEndsTheOthersAreTold) {
  SharedWindow window(kMax);
  const SharedWindow::Waiter other(window, 0, kLarge, &kHere, kStart);
  std::optional<SharedWindow::Waiter> claimer(std::in_place, window, 0, kLarge, &kHere, kStart);
  ASSERT_TRUE(claimer->claims(Lacks::kHere, kImpatient));
  const uint32_t sign = other.sign();

  claimer.reset();

  EXPECT_NE(other.sign(), sign);
}

// A call that is out may wait for one that the claim keeps from going out.
TEST(SharedWindowTest, AClaimEndsAfterAWhileAndThenNobodyClaimsForAsLong) {
  constexpr auto kMoment = std::chrono::milliseconds(1);
  SharedWindow window(kMax);
  SharedWindow::Waiter waiter(window, 0, kLarge, &kHere, kStart);
  SharedWindow::Waiter next(window, 0, kLarge, &kHere, kStart);
  ASSERT_TRUE(waiter.claims(Lacks::kHere, kImpatient));
  const uint32_t sign = next.sign();
  const base::Time end = kImpatient + SharedWindow::kFirstClaim;
  EXPECT_TRUE(waiter.claims(Lacks::kHere, end - kMoment));

  EXPECT_FALSE(waiter.claims(Lacks::kHere, end));
  EXPECT_FALSE(window.is_claimed(0, kLarge, &kHere));
  EXPECT_NE(next.sign(), sign);
  const base::Time again = end + SharedWindow::kFirstClaim;
  EXPECT_FALSE(next.claims(Lacks::kHere, again - kMoment));
  EXPECT_FALSE(waiter.claims(Lacks::kHere, again - kMoment));

  EXPECT_TRUE(next.claims(Lacks::kHere, again));
  EXPECT_FALSE(waiter.claims(Lacks::kHere, again)) << "it stands behind the other now";
}

TEST(SharedWindowTest, TheNextClaimOfAWaiterLastsTwiceAsLong) {
  SharedWindow window(kMax);
  SharedWindow::Waiter waiter(window, 0, kLarge, &kHere, kStart);
  base::Time now = kImpatient;
  base::Duration length = SharedWindow::kFirstClaim;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(waiter.claims(Lacks::kHere, now));
    EXPECT_TRUE(waiter.claims(Lacks::kHere, now + length - std::chrono::milliseconds(1)));
    EXPECT_FALSE(waiter.claims(Lacks::kHere, now + length));
    now += 2 * length;
    length = std::min<base::Duration>(2 * length, SharedWindow::kLongestClaim);
  }
}

}  // namespace
}  // namespace weft::rpc

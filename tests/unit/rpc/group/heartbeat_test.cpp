// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/heartbeat.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using base::Time;
using Verdict = Heartbeat::Verdict;

constexpr Heartbeat::Times kTimes{1s, 3s, 8s};
constexpr Time kStart{1h};

TEST(Heartbeat, APeerThatSpeaksIsFine) {
  Heartbeat heartbeat(kTimes, kStart);

  for (auto now = kStart; now < kStart + 60s; now += 500ms) {
    heartbeat.on_received(now);
    EXPECT_EQ(heartbeat.on_time(now + 400ms), Verdict::kFine);
  }
}

TEST(Heartbeat, ASilentPeerIsPingedOnceAnInterval) {
  Heartbeat heartbeat(kTimes, kStart);

  EXPECT_EQ(heartbeat.on_time(kStart + 999ms), Verdict::kFine);
  EXPECT_EQ(heartbeat.on_time(kStart + 1000ms), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 1001ms), Verdict::kFine);
  EXPECT_EQ(heartbeat.on_time(kStart + 2000ms), Verdict::kPing);
}

TEST(Heartbeat, IsSuspectedOnceThenDead) {
  Heartbeat heartbeat(kTimes, kStart);

  EXPECT_EQ(heartbeat.on_time(kStart + 2s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 3s), Verdict::kSuspect);
  EXPECT_EQ(heartbeat.on_time(kStart + 3s), Verdict::kFine);
  EXPECT_EQ(heartbeat.on_time(kStart + 4s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 6s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 7999ms), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 8s), Verdict::kDead);
}

TEST(Heartbeat, AfterStandingStillItselfItGivesThePeerItsFullTimeAgain) {
  Heartbeat heartbeat(kTimes, kStart);

  EXPECT_EQ(heartbeat.on_time(kStart + 20s), Verdict::kPing);
  EXPECT_EQ(heartbeat.next(), kStart + 21s);
  EXPECT_EQ(heartbeat.on_time(kStart + 22s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 24s), Verdict::kSuspect);
  EXPECT_EQ(heartbeat.on_time(kStart + 26s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 28s), Verdict::kDead);
}

TEST(Heartbeat, ASuspectThatSpeaksIsFineAndMayBeSuspectedAgain) {
  Heartbeat heartbeat(kTimes, kStart);
  heartbeat.on_time(kStart + 2s);
  ASSERT_EQ(heartbeat.on_time(kStart + 4s), Verdict::kSuspect);

  heartbeat.on_received(kStart + 5s);

  EXPECT_EQ(heartbeat.on_time(kStart + 5s), Verdict::kFine);
  EXPECT_EQ(heartbeat.on_time(kStart + 7s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 8s), Verdict::kSuspect);
  EXPECT_EQ(heartbeat.on_time(kStart + 10s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 12s), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 13s), Verdict::kDead);
}

TEST(Heartbeat, AThreadThatIsLateWithItsTimeDoesNotTurnItBack) {
  Heartbeat heartbeat(kTimes, kStart);
  heartbeat.on_received(kStart + 5s);

  heartbeat.on_received(kStart + 1s);

  EXPECT_EQ(heartbeat.silence(kStart + 6s), 1s);
}

TEST(Heartbeat, AskedOnlyWhenItSaysItNoticesEverythingInTime) {
  Heartbeat heartbeat(kTimes, kStart);
  std::vector<std::pair<base::Duration, Verdict>> told;

  for (Time now = kStart; told.empty() || told.back().second != Verdict::kDead;) {
    ASSERT_GT(heartbeat.next(), now) << "asked to ask without time passing";
    now = heartbeat.next();
    told.emplace_back(now - kStart, heartbeat.on_time(now));
    ASSERT_LT(told.size(), 100u);
  }

  const std::vector<std::pair<base::Duration, Verdict>> expected{
      {1s, Verdict::kPing}, {2s, Verdict::kPing}, {3s, Verdict::kSuspect}, {4s, Verdict::kPing},
      {5s, Verdict::kPing}, {6s, Verdict::kPing}, {7s, Verdict::kPing},    {8s, Verdict::kDead}};
  EXPECT_EQ(told, expected);
}

TEST(Heartbeat, MayDeclareDeadBeforeTheFirstPing) {
  Heartbeat heartbeat({10s, 20s, 100ms}, kStart);

  EXPECT_EQ(heartbeat.next(), kStart + 100ms);
  EXPECT_EQ(heartbeat.on_time(kStart + 100ms), Verdict::kDead);
}

}  // namespace
}  // namespace weft::rpc

// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/heartbeat.h"

#include <vector>

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

// Asks `heartbeat` whenever it wants to be asked, up to and including `end`.
std::vector<Verdict> ask_until(Heartbeat& heartbeat, Time end) {
  std::vector<Verdict> told;
  while (heartbeat.next() <= end) told.push_back(heartbeat.on_time(heartbeat.next()));
  return told;
}

TEST(Heartbeat, IsSuspectedOnceThenDead) {
  Heartbeat heartbeat(kTimes, kStart);
  ask_until(heartbeat, kStart + 2s);

  EXPECT_EQ(heartbeat.on_time(kStart + 3s), Verdict::kSuspect);
  EXPECT_EQ(heartbeat.on_time(kStart + 3s), Verdict::kFine);
  EXPECT_EQ(heartbeat.on_time(kStart + 4s), Verdict::kPing);
  ask_until(heartbeat, kStart + 7s);
  EXPECT_EQ(heartbeat.on_time(kStart + 7999ms), Verdict::kFine);
  EXPECT_EQ(heartbeat.on_time(kStart + 8s), Verdict::kDead);
}

// What a peer for which nobody waits is told, asked only when it says.
std::vector<std::pair<base::Duration, Verdict>> told_of_idle(const Heartbeat::Times& times) {
  Heartbeat heartbeat(times, kStart);
  heartbeat.set_idle(true);
  std::vector<std::pair<base::Duration, Verdict>> told;
  while (told.size() < 50 && (told.empty() || told.back().second != Verdict::kDead)) {
    const Time now = heartbeat.next();
    told.emplace_back(now - kStart, heartbeat.on_time(now));
  }
  return told;
}

TEST(Heartbeat, APeerForWhichNobodyWaitsIsPingedLaterAndDeadAtTheSameTime) {
  const std::vector<std::pair<base::Duration, Verdict>> expected{
      {3500ms, Verdict::kPing}, {4500ms, Verdict::kSuspect}, {5500ms, Verdict::kPing},
      {6500ms, Verdict::kPing}, {7500ms, Verdict::kPing},    {8s, Verdict::kDead}};
  EXPECT_EQ(told_of_idle(kTimes), expected);
}

TEST(Heartbeat, APeerForWhichNobodyWaitsIsPingedBeforeItIsDead) {
  const std::vector<std::pair<base::Duration, Verdict>> expected{{1s, Verdict::kPing},
                                                                 {2s, Verdict::kDead}};
  EXPECT_EQ(told_of_idle({1s, 1500ms, 2s}), expected);
}

TEST(Heartbeat, APeerThatSpeaksOftenEnoughIsNotPingedWhileNobodyWaitsForIt) {
  Heartbeat heartbeat(kTimes, kStart);
  heartbeat.set_idle(true);

  for (auto now = kStart; now < kStart + 60s; now += 3333ms) {
    heartbeat.on_received(now);
    EXPECT_GT(heartbeat.next(), now + 3333ms);
    EXPECT_EQ(heartbeat.on_time(now + 3s), Verdict::kFine);
  }
}

TEST(Heartbeat, AsSoonAsSomebodyWaitsThePeerIsPinged) {
  Heartbeat heartbeat(kTimes, kStart);
  heartbeat.set_idle(true);
  EXPECT_EQ(heartbeat.on_time(kStart + 2500ms), Verdict::kFine);
  heartbeat.set_idle(false);

  EXPECT_EQ(heartbeat.on_time(kStart + 2501ms), Verdict::kPing);
  EXPECT_EQ(heartbeat.on_time(kStart + 3s), Verdict::kFine) << "it was asked just now";
  EXPECT_EQ(heartbeat.on_time(kStart + 3501ms), Verdict::kSuspect);
}

TEST(Heartbeat, APeerForWhichSomebodyBeginsToWaitIsAskedBeforeItIsSuspected) {
  Heartbeat heartbeat(kTimes, kStart);
  heartbeat.set_idle(true);
  EXPECT_EQ(heartbeat.on_time(kStart + 3333ms), Verdict::kFine);
  heartbeat.set_idle(false);  // a lease is renewed

  EXPECT_EQ(heartbeat.on_time(kStart + 3334ms), Verdict::kPing);
  heartbeat.on_received(kStart + 3335ms);
  EXPECT_EQ(heartbeat.on_time(kStart + 3336ms), Verdict::kFine);
}

TEST(Heartbeat, AfterStandingStillItselfItGivesThePeerItsFullTimeAgain) {
  Heartbeat heartbeat(kTimes, kStart);

  EXPECT_EQ(heartbeat.on_time(kStart + 20s), Verdict::kPing);
  EXPECT_EQ(heartbeat.next(), kStart + 21s);
  ask_until(heartbeat, kStart + 22s);
  EXPECT_EQ(heartbeat.on_time(kStart + 23s), Verdict::kSuspect);
  ask_until(heartbeat, kStart + 27s);
  EXPECT_EQ(heartbeat.on_time(kStart + 28s), Verdict::kDead);
}

TEST(Heartbeat, MomentsWithoutACpuAreNotThePeersSilence) {
  Heartbeat heartbeat(kTimes, kStart);
  ask_until(heartbeat, kStart + 4s);

  // Due at 5 s, asked at 6.5 s, and at the peer's end once more 1.9 s late.
  EXPECT_EQ(heartbeat.on_time(kStart + 6500ms), Verdict::kPing);
  EXPECT_EQ(heartbeat.silence(kStart + 6500ms), 5s);
  ask_until(heartbeat, kStart + 8500ms);
  EXPECT_EQ(heartbeat.next(), kStart + 9500ms);
  EXPECT_EQ(heartbeat.on_time(kStart + 11400ms), Verdict::kPing) << "its answer may lie unread";

  EXPECT_EQ(heartbeat.next(), kStart + 11400ms);
  EXPECT_EQ(heartbeat.on_time(kStart + 11401ms), Verdict::kDead);
}

TEST(Heartbeat, AnAnswerThatLayUnreadWhileThisProcessHadNoCpuCounts) {
  Heartbeat heartbeat(kTimes, kStart);
  ask_until(heartbeat, kStart + 7s);
  ASSERT_EQ(heartbeat.on_time(kStart + 9s), Verdict::kPing);

  heartbeat.on_received(kStart + 9s);

  EXPECT_EQ(heartbeat.on_time(kStart + 9s), Verdict::kFine);
  EXPECT_EQ(heartbeat.next(), kStart + 10s);
}

TEST(Heartbeat, ASuspectThatSpeaksIsFineAndMayBeSuspectedAgain) {
  Heartbeat heartbeat(kTimes, kStart);
  ask_until(heartbeat, kStart + 2s);
  ASSERT_EQ(heartbeat.on_time(kStart + 3s), Verdict::kSuspect);

  heartbeat.on_received(kStart + 5s);

  EXPECT_EQ(heartbeat.on_time(kStart + 5s), Verdict::kFine);
  ask_until(heartbeat, kStart + 7s);
  EXPECT_EQ(heartbeat.on_time(kStart + 8s), Verdict::kSuspect);
  ask_until(heartbeat, kStart + 12s);
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

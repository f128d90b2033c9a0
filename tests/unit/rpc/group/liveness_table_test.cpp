// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/liveness_table.h"

#include <gtest/gtest.h>

#include "rpc/group/wait_hint.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using Change = LivenessTable::Change;

const base::Time kNow = base::Time() + 100s;

TEST(LivenessTable, AMemberWhoseAddressRefusesIsGoneAtOnce) {
  LivenessTable table(3, 8s);

  EXPECT_EQ(table.on_sign(1, SignOfLife::kRefused, kNow, kNow, "refused"), Change::kGone);

  EXPECT_EQ(table.why_gone(1), "refused");
  EXPECT_EQ(table.why_gone(0), std::nullopt);
}

TEST(LivenessTable, AMemberThatWasReplacedOrFellSilentIsGoneAtOnce) {
  LivenessTable table(3, 8s);

  EXPECT_EQ(table.on_sign(1, SignOfLife::kReplaced, kNow, kNow, "another"), Change::kGone);
  EXPECT_EQ(table.on_sign(2, SignOfLife::kSilent, kNow, kNow, "silent"), Change::kGone);
}

TEST(LivenessTable, AMemberThatCannotBeReachedIsGoneAfterAllPatience) {
  LivenessTable table(1, 8s);

  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow, kNow + 5s, "no answer"),
            Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow + 5s, kNow + 7s, "no answer"),
            Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow + 7s, kNow + 8s, "no answer"),
            Change::kGone);
}

TEST(LivenessTable, PatienceBeginsAnewWithEverySignOfLife) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kUnreachable, kNow, kNow + 5s, "no answer");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kHeard, kNow, kNow + 6s, ""), Change::kNone);

  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow + 6s, kNow + 13s, "no answer"),
            Change::kNone);
}

TEST(LivenessTable, AMemberIsNotGoneWhileAConnectionToItStands) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kHeard, kNow, kNow, "");
  table.on_sign(0, SignOfLife::kHeard, kNow, kNow, "");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow, kNow + 9s, "no answer"),
            Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kSilent, kNow, kNow + 9s, "silent"), Change::kNone);
  EXPECT_EQ(table.why_gone(0), std::nullopt);

  EXPECT_EQ(table.on_sign(0, SignOfLife::kSilent, kNow, kNow + 10s, "silent too"), Change::kGone);
  EXPECT_EQ(table.why_gone(0), "silent too");
}

TEST(LivenessTable, PatienceBeginsWhenNoConnectionStands) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kHeard, kNow, kNow, "");
  table.on_sign(0, SignOfLife::kUnreachable, kNow, kNow + 7s, "no answer");
  table.on_sign(0, SignOfLife::kEnded, kNow, kNow + 7s, "broken");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow + 7s, kNow + 9s, "no answer"),
            Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow + 9s, kNow + 15s, "no answer"),
            Change::kGone);
}

// The process has ended; of its connections one is noticed to be broken after another.
TEST(LivenessTable, AMemberWhoseAddressRefusesIsGoneWhenItsLastConnectionHasEnded) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kHeard, kNow, kNow, "");
  table.on_sign(0, SignOfLife::kHeard, kNow, kNow, "");
  table.on_sign(0, SignOfLife::kEnded, kNow, kNow, "broken");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kRefused, kNow, kNow, "refused"), Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kEnded, kNow, kNow, "broken"), Change::kGone);

  EXPECT_EQ(table.why_gone(0), "refused");
}

TEST(LivenessTable, AnAttemptThatBeganWhileAConnectionStoodCountsFromItsEnd) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kHeard, kNow, kNow, "");
  table.on_sign(0, SignOfLife::kEnded, kNow + 4s, kNow + 4s, "broken");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow, kNow + 9s, "no answer"),
            Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kNow + 9s, kNow + 12s, "no answer"),
            Change::kGone);
}

// The host is gone: one connection falls silent, the system breaks the other.
TEST(LivenessTable, AMemberOfWhichOneConnectionFellSilentIsGoneWithTheLast) {
  LivenessTable table(2, 8s);
  for (const int rank : {0, 0, 1, 1}) table.on_sign(rank, SignOfLife::kHeard, kNow, kNow, "");
  for (const int rank : {0, 1}) table.on_sign(rank, SignOfLife::kSilent, kNow, kNow, "silent");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kEnded, kNow, kNow + 1s, "no route"), Change::kGone);
  EXPECT_EQ(table.on_sign(1, SignOfLife::kEnded, kNow, kNow + 9s, "broken"), Change::kNone);
}

TEST(LivenessTable, AMemberWhoseConnectionsEndedMayAcceptOthers) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kHeard, kNow, kNow, "");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kEnded, kNow, kNow, "broken"), Change::kNone);

  EXPECT_EQ(table.why_gone(0), std::nullopt);
}

TEST(LivenessTable, AMemberThatIsHeardOfAgainIsBack) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kSilent, kNow, kNow, "silent");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kRefused, kNow, kNow, "refused"), Change::kNone);
  EXPECT_EQ(table.why_gone(0), "silent");
  EXPECT_EQ(table.on_sign(0, SignOfLife::kHeard, kNow, kNow, ""), Change::kBack);

  EXPECT_EQ(table.why_gone(0), std::nullopt);
}

TEST(WaitHint, ComesAfterFiveSecondsThenEverLessOften) {
  WaitHint hint;
  hint.begin(kNow);
  std::vector<int64_t> at;

  for (int64_t second = 0; second <= 1200; ++second) {
    if (hint.is_due(kNow + std::chrono::seconds(second))) at.push_back(second);
  }

  EXPECT_EQ(at, (std::vector<int64_t>{5, 15, 35, 75, 155, 315, 615, 915}));
}

}  // namespace
}  // namespace weft::rpc

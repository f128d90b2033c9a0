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

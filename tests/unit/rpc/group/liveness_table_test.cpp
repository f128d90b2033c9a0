// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/liveness_table.h"

#include <gtest/gtest.h>

#include "rpc/group/wait_hint.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using Change = LivenessTable::Change;

const base::Time kStart = base::Time() + 100s;

TEST(LivenessTable, AMemberWhoseAddressRefusesIsGoneAtOnce) {
  LivenessTable table(3, 8s);

  EXPECT_EQ(table.on_sign(1, SignOfLife::kRefused, kStart, kStart, "refused"), Change::kGone);

  EXPECT_EQ(table.why_gone(1), "refused");
  EXPECT_EQ(table.why_gone(0), std::nullopt);
}

TEST(LivenessTable, AMemberThatWasReplacedOrFellSilentIsGoneAtOnce) {
  LivenessTable table(3, 8s);

  EXPECT_EQ(table.on_sign(1, SignOfLife::kReplaced, kStart, kStart, "another"), Change::kGone);
  EXPECT_EQ(table.on_sign(2, SignOfLife::kSilent, kStart, kStart, "silent"), Change::kGone);
}

TEST(LivenessTable, AMemberThatCannotBeReachedIsGoneAfterAllPatience) {
  LivenessTable table(1, 8s);

  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kStart, kStart + 5s, "no answer"),
            Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kStart + 5s, kStart + 7s, "no answer"),
            Change::kNone);
  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kStart + 7s, kStart + 8s, "no answer"),
            Change::kGone);
}

TEST(LivenessTable, PatienceBeginsAnewWithEverySignOfLife) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kUnreachable, kStart, kStart + 5s, "no answer");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kHeard, kStart, kStart + 6s, ""), Change::kNone);

  EXPECT_EQ(table.on_sign(0, SignOfLife::kUnreachable, kStart + 6s, kStart + 13s, "no answer"),
            Change::kNone);
}

TEST(LivenessTable, AMemberThatIsHeardOfAgainIsBack) {
  LivenessTable table(1, 8s);
  table.on_sign(0, SignOfLife::kSilent, kStart, kStart, "silent");

  EXPECT_EQ(table.on_sign(0, SignOfLife::kRefused, kStart, kStart, "refused"), Change::kNone);
  EXPECT_EQ(table.why_gone(0), "silent");
  EXPECT_EQ(table.on_sign(0, SignOfLife::kHeard, kStart, kStart, ""), Change::kBack);

  EXPECT_EQ(table.why_gone(0), std::nullopt);
}

TEST(WaitHint, ComesAfterFiveSecondsThenEverLessOften) {
  WaitHint hint;
  hint.begin(kStart);
  std::vector<int64_t> at;

  for (int64_t second = 0; second <= 1200; ++second) {
    if (hint.is_due(kStart + std::chrono::seconds(second))) at.push_back(second);
  }

  EXPECT_EQ(at, (std::vector<int64_t>{5, 15, 35, 75, 155, 315, 615, 915}));
}

}  // namespace
}  // namespace weft::rpc

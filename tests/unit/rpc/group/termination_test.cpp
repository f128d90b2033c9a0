// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/termination.h"

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Verdict = Termination::Verdict;
using Verdicts = std::map<int, std::vector<bool>>;  // by rank: finished or not, in order

Termination::Answer note(Verdicts& verdicts, int rank) {
  return [&verdicts, rank](const Verdict& verdict) { verdicts[rank].push_back(verdict.finished); };
}

TEST(Termination, OneAloneFinishesAfterTwoWaves) {
  Termination termination(1);
  Verdicts verdicts;

  termination.on_report(0, true, 5, note(verdicts, 0));
  termination.on_report(0, true, 5, note(verdicts, 0));

  EXPECT_THAT(verdicts[0], ElementsAre(false, true));
}

TEST(Termination, AWaveWaitsForEverybody) {
  Termination termination(3);
  Verdicts verdicts;

  termination.on_report(0, true, 1, note(verdicts, 0));
  termination.on_report(2, true, 1, note(verdicts, 2));
  EXPECT_THAT(termination.missing(), ElementsAre(1));
  EXPECT_THAT(verdicts, IsEmpty());

  termination.on_report(1, true, 1, note(verdicts, 1));
  EXPECT_EQ(verdicts, (Verdicts{{0, {false}}, {1, {false}}, {2, {false}}}));
  EXPECT_THAT(termination.missing(), ElementsAre(0, 1, 2));
}

TEST(Termination, ActivityBetweenTwoWavesCostsAThird) {
  Termination termination(2);
  Verdicts verdicts;
  auto wave = [&](uint64_t first, uint64_t second) {
    termination.on_report(0, true, first, note(verdicts, 0));
    termination.on_report(1, true, second, note(verdicts, 1));
  };

  wave(1, 1);
  wave(1, 2);
  wave(1, 2);

  EXPECT_THAT(verdicts[0], ElementsAre(false, false, true));
  EXPECT_THAT(verdicts[1], ElementsAre(false, false, true));
}

TEST(Termination, OneThatIsBusyKeepsTheGroup) {
  Termination termination(2);
  Verdicts verdicts;
  for (int i = 0; i < 5; ++i) {
    termination.on_report(0, true, 1, note(verdicts, 0));
    termination.on_report(1, false, 1, note(verdicts, 1));
  }

  EXPECT_THAT(verdicts[0], ElementsAre(false, false, false, false, false));
}

TEST(Termination, ASecondReportReplacesTheFirst) {
  Termination termination(2);
  Verdicts verdicts;
  termination.on_report(0, true, 1, note(verdicts, 0));

  termination.on_report(0, true, 2, note(verdicts, 0));
  EXPECT_THAT(verdicts[0], ElementsAre(false));

  termination.on_report(1, true, 1, note(verdicts, 1));
  termination.on_report(0, true, 1, note(verdicts, 0));
  termination.on_report(1, true, 1, note(verdicts, 1));
  EXPECT_THAT(verdicts[1], ElementsAre(false, false)) << "the activity of rank 0 was 2, then 1";
}

TEST(Termination, TheDeadAreNotWaitedForAndAreNamed) {
  Termination termination(3);
  std::optional<Verdict> last;
  auto answer = [&last](const Verdict& verdict) { last = verdict; };
  termination.on_report(0, true, 1, answer);
  termination.on_report(1, true, 1, answer);
  EXPECT_FALSE(last);

  termination.on_dead(2);
  ASSERT_TRUE(last);
  EXPECT_FALSE(last->finished);
  termination.on_report(0, true, 1, answer);
  termination.on_report(1, true, 1, answer);

  EXPECT_TRUE(last->finished);
  EXPECT_THAT(last->dead, ElementsAre(2));
}

// What it did since its last report shows in nobody's count any more: it may have called one that
// has reported already (seed 220 of TerminationSimulation).
TEST(Termination, ADeathBetweenTwoWavesCostsAThird) {
  Termination termination(3);
  Verdicts verdicts;
  for (int rank = 0; rank < 3; ++rank) termination.on_report(rank, true, 1, note(verdicts, rank));

  termination.on_report(0, true, 1, note(verdicts, 0));
  termination.on_report(1, true, 1, note(verdicts, 1));
  termination.on_dead(2);
  EXPECT_THAT(verdicts[0], ElementsAre(false, false));
  termination.on_report(0, true, 1, note(verdicts, 0));
  termination.on_dead(2);  // told again: no news
  termination.on_report(1, true, 1, note(verdicts, 1));

  EXPECT_THAT(verdicts[0], ElementsAre(false, false, true));
}

TEST(Termination, ARumourOfADeathIsOldNewsOnceItHasSpokenInThisWave) {
  Termination termination(2);
  Verdicts verdicts;
  termination.on_report(1, true, 1, note(verdicts, 1));

  termination.on_dead(1);
  termination.on_report(0, true, 1, note(verdicts, 0));

  EXPECT_THAT(termination.dead(), IsEmpty());
  EXPECT_THAT(verdicts[1], ElementsAre(false));
}

TEST(Termination, OneThatWasBelievedDeadCountsAgainWhenItSpeaks) {
  Termination termination(2);
  Verdicts verdicts;
  termination.on_dead(1);
  termination.on_report(1, true, 1, note(verdicts, 1));

  EXPECT_THAT(termination.dead(), IsEmpty());
  EXPECT_THAT(termination.missing(), ElementsAre(0));
}

TEST(Termination, TheAnswerMayReportAgain) {
  Termination termination(1);
  bool finished = false;

  std::function<void(const Verdict&)> again = [&](const Verdict& verdict) {
    finished = verdict.finished;
    if (!finished) termination.on_report(0, true, 1, again);
  };
  termination.on_report(0, true, 1, again);

  EXPECT_TRUE(finished);
}

}  // namespace
}  // namespace weft::rpc

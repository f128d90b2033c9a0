// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/meeting_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/group/meeting_rounds.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

using Numbers = MeetingTable<int>;
using Outcome = Numbers::Outcome;
using Values = std::map<std::string, int>;
const Numbers::Set kSet{"a", "b", "c"};
const Numbers::Set kPair{"a", "b"};

class MeetingTableTest : public testing::Test {
 protected:
  /// `who` comes; its outcome appears in outcomes[as].
  void arrive(const Numbers::Set& set, uint64_t round, const std::string& who, int value,
              const std::string& as) {
    table.on_arrival(set, round, who,
                     {value, [this, as](const Outcome& outcome) { outcomes[as] = outcome; },
                      [this, as] { return !left.contains(as); }},
                     now);
  }
  void arrive(const Numbers::Set& set, uint64_t round, const std::string& who, int value = 0) {
    arrive(set, round, who, value, who);
  }
  Values values_of(const std::string& as) { return outcomes.at(as).values; }

  base::Time now{};
  Numbers table{10s};
  std::map<std::string, Outcome> outcomes;
  std::set<std::string> left;  // those who do not wait any more
};

TEST_F(MeetingTableTest, AnswersEverybodyWhenTheLastOneCame) {
  arrive(kSet, 0, "a", 10);
  arrive(kSet, 0, "c", 30);
  EXPECT_THAT(outcomes, IsEmpty());

  arrive(kSet, 0, "b", 20);

  const Values all{{"a", 10}, {"b", 20}, {"c", 30}};
  EXPECT_EQ(outcomes.size(), 3u);
  for (const std::string& name : kSet) EXPECT_EQ(values_of(name), all);
}

TEST_F(MeetingTableTest, RoundsAndSetsDoNotMix) {
  arrive(kPair, 1, "a", 1, "a1");
  arrive(kPair, 2, "a", 2, "a2");
  arrive({"a", "c"}, 2, "c", 4, "c");

  arrive(kPair, 2, "b", 3, "b2");

  EXPECT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(values_of("a2"), (Values{{"a", 2}, {"b", 3}}));
}

TEST_F(MeetingTableTest, ASecondArrivalReplacesTheFirst) {
  arrive(kPair, 0, "a", 1, "first");
  arrive(kPair, 0, "a", 2, "second");
  EXPECT_THAT(outcomes, IsEmpty());

  arrive(kPair, 0, "b", 3);

  EXPECT_FALSE(outcomes.contains("first"));
  EXPECT_EQ(values_of("second"), (Values{{"a", 2}, {"b", 3}}));
}

TEST_F(MeetingTableTest, TheLeaderIsAnsweredLast) {
  std::vector<std::string> order;
  for (const std::string who : {"a", "b", "c"}) {
    table.on_arrival(kSet, 0, who, {0, [&order, who](const Outcome&) { order.push_back(who); }},
                     now);
  }

  EXPECT_EQ(order.back(), "a");
}

TEST_F(MeetingTableTest, OneThatWithdrewIsNotAnsweredAndIsWaitedForAgain) {
  arrive(kSet, 0, "a", 1, "early a");
  arrive(kSet, 0, "b", 2);

  EXPECT_THAT(table.withdraw(kSet, 0, "a"), ElementsAre("c"));
  arrive(kSet, 0, "c", 3);
  EXPECT_THAT(outcomes, IsEmpty());
  arrive(kSet, 0, "a", 4);

  EXPECT_EQ(values_of("c"), (Values{{"a", 4}, {"b", 2}, {"c", 3}}));
  EXPECT_FALSE(outcomes.contains("early a"));
}

TEST_F(MeetingTableTest, WithdrawingFromARoundThatNobodyCameToNamesAll) {
  EXPECT_THAT(table.withdraw(kSet, 7, "a"), ElementsAre("a", "b", "c"));
}

// A member whose connection was lost, or that gave up, does not count as present.
TEST_F(MeetingTableTest, OneThatWaitsNoMoreIsWaitedForAgain) {
  arrive(kPair, 0, "a", 1, "lost a");
  left.insert("lost a");

  arrive(kPair, 0, "b", 2);
  EXPECT_THAT(outcomes, IsEmpty());
  arrive(kPair, 0, "a", 3);

  EXPECT_EQ(values_of("b"), (Values{{"a", 3}, {"b", 2}}));
}

TEST_F(MeetingTableTest, ASweepForgetsMeetingsThatEverybodyLeft) {
  for (uint64_t round = 0; round < 100; ++round) arrive(kPair, round, "a");
  EXPECT_EQ(table.meetings(), 100u);

  left.insert("a");
  table.sweep(now, now);

  EXPECT_EQ(table.meetings(), 0u);
  EXPECT_TRUE(table.empty());
}

TEST_F(MeetingTableTest, ASweepNamesThoseWhoHaveBeenWaitedForLong) {
  arrive(kSet, 0, "a");
  now += 1s;
  arrive({"a", "d"}, 0, "d");

  EXPECT_THAT(table.sweep(now, now - 500ms), ElementsAre("b", "c"));
}

TEST_F(MeetingTableTest, AMemberThatIsGoneEndsTheMeetingsThatWaitForIt) {
  arrive(kSet, 0, "a", 1, "all");
  arrive({"a", "c"}, 0, "a", 1, "without b");

  table.on_lost("b", "b is gone: killed");

  ASSERT_TRUE(outcomes.contains("all"));
  EXPECT_EQ(outcomes["all"].status, Outcome::Status::kLost);
  EXPECT_EQ(outcomes["all"].lost, "b");
  EXPECT_EQ(outcomes["all"].why, "b is gone: killed");
  EXPECT_FALSE(outcomes.contains("without b"));
  EXPECT_EQ(table.meetings(), 1u);
}

// The reply was lost with the connection, or the member gave up just then.
TEST_F(MeetingTableTest, OneThatComesAgainToACompletedRoundIsAnsweredAtOnce) {
  arrive(kPair, 0, "a", 1);
  arrive(kPair, 0, "b", 2);

  arrive(kPair, 0, "b", 2, "b again");

  EXPECT_EQ(values_of("b again"), (Values{{"a", 1}, {"b", 2}}));
  EXPECT_EQ(table.meetings(), 0u);
}

TEST_F(MeetingTableTest, ValuesOfACompletedRoundAreForgottenTheRoundIsNot) {
  arrive(kPair, 0, "a", 1);
  arrive(kPair, 0, "b", 2);
  now += 10s;
  table.sweep(now, now);
  EXPECT_TRUE(table.empty());

  arrive(kPair, 0, "b", 2, "late b");

  EXPECT_EQ(outcomes["late b"].status, Outcome::Status::kPassed);
}

TEST_F(MeetingTableTest, KeepsTheValuesOfFewRounds) {
  for (uint64_t round = 0; round < 100; ++round) {
    arrive(kPair, round, "a", 1);
    arrive(kPair, round, "b", 2);
  }

  arrive(kPair, 99, "b", 2, "last");
  arrive(kPair, 0, "b", 2, "first");

  EXPECT_EQ(outcomes["last"].status, Outcome::Status::kMet);
  EXPECT_EQ(outcomes["first"].status, Outcome::Status::kPassed);
}

// Their answers may end promises, which is not to happen under the lock of the table's owner.
TEST_F(MeetingTableTest, GuestsThatAreNotAnsweredEndWithTheOwner) {
  const auto token = std::make_shared<int>();
  const auto come = [&](const std::string& who) {
    table.on_arrival(kSet, 0, who, {0, [token](const Outcome&) {}, [] { return true; }}, now);
  };
  come("a");
  come("a");
  come("b");
  table.withdraw(kSet, 0, "b");
  table.clear();
  EXPECT_EQ(token.use_count(), 1 + 3);

  EXPECT_EQ(table.take_left().size(), 3u);
  EXPECT_EQ(token.use_count(), 1);
}

TEST_F(MeetingTableTest, ClearedItAnswersNobodyAndStartsAfresh) {
  arrive(kPair, 0, "a");

  table.clear();
  arrive(kPair, 0, "b");

  EXPECT_THAT(outcomes, IsEmpty());
  EXPECT_THAT(table.withdraw(kPair, 0, "b"), ElementsAre("a"));
}

TEST_F(MeetingTableTest, TheAnswerMayStartTheNextRound) {
  const Numbers::Set alone{"a"};

  table.on_arrival(alone, 0, "a", {1, [&](const Outcome&) { arrive(alone, 1, "a", 2); }}, now);

  EXPECT_EQ(values_of("a"), (Values{{"a", 2}}));
}

TEST(MeetingRounds, AFailedRoundIsTriedAgainFirst) {
  MeetingRounds rounds;
  EXPECT_EQ(rounds.take(kPair), 0u);
  EXPECT_EQ(rounds.take(kPair), 1u);
  EXPECT_EQ(rounds.take(kSet), 0u);

  rounds.give_back(kPair, 0);

  EXPECT_EQ(rounds.take(kPair), 0u);
  EXPECT_EQ(rounds.take(kPair), 2u);
}

}  // namespace
}  // namespace weft::rpc

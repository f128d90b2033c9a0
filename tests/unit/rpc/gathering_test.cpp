// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/gathering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Numbers = Gathering<int>;
using Answers = std::map<std::string, Numbers::All>;
const std::vector<std::string> kSet{"a", "b", "c"};

Numbers::Answer note(Answers& answers, const std::string& who) {
  return [&answers, who](const Numbers::All& all) { answers[who] = all; };
}

TEST(Gathering, AnswersEverybodyWhenTheLastOneCame) {
  Numbers numbers;
  Answers answers;
  numbers.on_arrival(kSet, 1, "a", 10, note(answers, "a"));
  numbers.on_arrival(kSet, 1, "c", 30, note(answers, "c"));
  EXPECT_THAT(answers, IsEmpty());

  numbers.on_arrival(kSet, 1, "b", 20, note(answers, "b"));

  const Numbers::All all{{"a", 10}, {"b", 20}, {"c", 30}};
  EXPECT_EQ(answers, (Answers{{"a", all}, {"b", all}, {"c", all}}));
}

TEST(Gathering, NamesWhoIsMissing) {
  Numbers numbers;
  Answers answers;
  EXPECT_THAT(numbers.missing(kSet, 1), ElementsAre("a", "b", "c"));

  numbers.on_arrival(kSet, 1, "b", 0, note(answers, "b"));

  EXPECT_THAT(numbers.missing(kSet, 1), ElementsAre("a", "c"));
  EXPECT_THAT(numbers.missing(kSet, 2), ElementsAre("a", "b", "c"));
}

TEST(Gathering, RoundsDoNotMix) {
  Numbers numbers;
  Answers answers;
  const std::vector<std::string> pair{"a", "b"};
  numbers.on_arrival(pair, 1, "a", 1, note(answers, "a1"));
  numbers.on_arrival(pair, 2, "a", 2, note(answers, "a2"));

  numbers.on_arrival(pair, 2, "b", 3, note(answers, "b2"));

  const Numbers::All second{{"a", 2}, {"b", 3}};
  EXPECT_EQ(answers, (Answers{{"a2", second}, {"b2", second}}));
}

TEST(Gathering, SetsDoNotMix) {
  Numbers numbers;
  Answers answers;
  numbers.on_arrival({"a", "b"}, 1, "a", 1, note(answers, "ab"));

  numbers.on_arrival({"a", "c"}, 1, "c", 2, note(answers, "ac"));

  EXPECT_THAT(answers, IsEmpty());
}

TEST(Gathering, ASecondArrivalReplacesTheFirst) {
  Numbers numbers;
  Answers answers;
  const std::vector<std::string> pair{"a", "b"};
  numbers.on_arrival(pair, 1, "a", 1, note(answers, "first"));
  numbers.on_arrival(pair, 1, "a", 2, note(answers, "second"));
  EXPECT_THAT(answers, IsEmpty());

  numbers.on_arrival(pair, 1, "b", 3, note(answers, "b"));

  EXPECT_FALSE(answers.contains("first"));
  EXPECT_EQ(answers["second"], (Numbers::All{{"a", 2}, {"b", 3}}));
}

TEST(Gathering, TheLeaderIsAnsweredLast) {
  Numbers numbers;
  std::vector<std::string> order;
  for (const std::string who : {"a", "b", "c"}) {
    numbers.on_arrival(kSet, 1, who, 0,
                       [&order, who](const Numbers::All&) { order.push_back(who); });
  }

  EXPECT_EQ(order.back(), "a");
}

TEST(Gathering, OneThatWithdrewIsNotAnsweredAndIsWaitedForAgain) {
  Numbers numbers;
  Answers answers;
  numbers.on_arrival(kSet, 1, "a", 1, note(answers, "early a"));
  numbers.on_arrival(kSet, 1, "b", 2, note(answers, "b"));

  EXPECT_THAT(numbers.withdraw(kSet, 1, "a"), ElementsAre("c"));
  numbers.on_arrival(kSet, 1, "c", 3, note(answers, "c"));
  EXPECT_THAT(answers, IsEmpty());
  numbers.on_arrival(kSet, 1, "a", 4, note(answers, "a"));

  const Numbers::All all{{"a", 4}, {"b", 2}, {"c", 3}};
  EXPECT_EQ(answers, (Answers{{"a", all}, {"b", all}, {"c", all}}));
}

TEST(Gathering, WithdrawingFromARoundThatIsOverChangesNothing) {
  Numbers numbers;

  EXPECT_THAT(numbers.withdraw(kSet, 7, "a"), ElementsAre("a", "b", "c"));
}

TEST(Gathering, GivenUpItAnswersNobodyAndStartsAfresh) {
  Numbers numbers;
  Answers answers;
  const std::vector<std::string> pair{"a", "b"};
  numbers.on_arrival(pair, 1, "a", 1, note(answers, "a"));

  numbers.abandon_all();
  numbers.on_arrival(pair, 1, "b", 2, note(answers, "b"));

  EXPECT_THAT(answers, IsEmpty());
  EXPECT_THAT(numbers.missing(pair, 1), ElementsAre("a"));
}

TEST(Gathering, TheAnswerMayStartTheNextRound) {
  Numbers numbers;
  Answers answers;
  const std::vector<std::string> alone{"a"};

  numbers.on_arrival(alone, 1, "a", 1, [&](const Numbers::All&) {
    numbers.on_arrival(alone, 2, "a", 2, note(answers, "a"));
  });

  EXPECT_EQ(answers["a"], (Numbers::All{{"a", 2}}));
}

}  // namespace
}  // namespace weft::rpc

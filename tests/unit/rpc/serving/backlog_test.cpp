// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/backlog.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using Calls = Backlog<int, std::string>;

std::vector<std::string> pop_all(Calls& backlog) {
  std::vector<std::string> popped;
  while (auto call = backlog.pop()) popped.push_back(*call);
  return popped;
}

TEST(Backlog, CallsOfOneCallerKeepTheirOrder) {
  Calls backlog;
  for (const char* call : {"1", "2", "3"}) backlog.push(7, call);

  EXPECT_EQ(backlog.size(), 3u);
  EXPECT_EQ(pop_all(backlog), (std::vector<std::string>{"1", "2", "3"}));
  EXPECT_TRUE(backlog.empty());
}

TEST(Backlog, CallersTakeTurns) {
  Calls backlog;
  for (const char* call : {"a1", "a2", "a3"}) backlog.push(0, call);
  backlog.push(1, "b1");
  backlog.push(2, "c1");
  backlog.push(2, "c2");

  EXPECT_EQ(pop_all(backlog), (std::vector<std::string>{"a1", "b1", "c1", "a2", "c2", "a3"}));
}

TEST(Backlog, ACallerThatComesLateWaitsForOneCallOfEachOther) {
  Calls backlog;
  for (int i = 0; i < 1000; ++i) backlog.push(0, "many");
  backlog.pop();

  backlog.push(1, "one");

  EXPECT_EQ(backlog.pop(), "many");
  EXPECT_EQ(backlog.pop(), "one");
}

TEST(Backlog, ACallThatSuitsMayGoFirstButNotBeforeOthersOfItsCaller) {
  Calls backlog;
  for (const char* call : {"long 1", "short 1"}) backlog.push(0, call);
  for (const char* call : {"short 2", "long 2"}) backlog.push(1, call);
  const auto is_short = [](const std::string& call) { return call.starts_with("short"); };

  EXPECT_EQ(backlog.pop_if(is_short), "short 2");
  EXPECT_EQ(backlog.pop_if(is_short), std::nullopt);
  EXPECT_EQ(pop_all(backlog), (std::vector<std::string>{"long 1", "long 2", "short 1"}));
}

TEST(Backlog, AtRandomNothingIsLostAndNobodyIsPassedOver) {
  constexpr int kCallers = 5;
  std::mt19937 random(1);
  Backlog<int, int> backlog;
  std::vector<int> pushed(kCallers), popped(kCallers), passed_over(kCallers);

  for (int step = 0; step < 100'000; ++step) {
    const int caller = static_cast<int>(random() % kCallers);
    const auto at = static_cast<size_t>(caller);
    if (random() % 2) {
      if (pushed[at] == popped[at]) passed_over[at] = 0;
      backlog.push(caller, caller * 1'000'000 + pushed[at]++);
      continue;
    }
    const auto call = backlog.pop();
    if (!call) continue;
    const auto whose = static_cast<size_t>(*call / 1'000'000);
    ASSERT_EQ(*call % 1'000'000, popped[whose]++) << "of caller " << whose;
    for (size_t other = 0; other < kCallers; ++other) {
      passed_over[other] = other == whose ? 0 : passed_over[other] + 1;
      if (pushed[other] > popped[other]) {
        ASSERT_LT(passed_over[other], kCallers) << "caller " << other;
      }
    }
  }
}

}  // namespace
}  // namespace weft::rpc

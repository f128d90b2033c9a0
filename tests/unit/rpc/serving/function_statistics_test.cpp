// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/function_statistics.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

TEST(FunctionStatistics, FollowsWhatAFunctionTakes) {
  FunctionStatistics statistics;
  EXPECT_EQ(statistics.usual(0), 0ns);

  for (int i = 0; i < 100; ++i) statistics.record(0, false, 80us);
  EXPECT_GT(statistics.usual(0), 50us);
  EXPECT_LE(statistics.usual(0), 80us);
  for (int i = 0; i < 100; ++i) statistics.record(0, false, 1us);
  EXPECT_LT(statistics.usual(0), 4us);
  EXPECT_EQ(statistics.usual(1), 0ns);
}

// Its thread lost its CPU now and then.
TEST(FunctionStatistics, AShortFunctionStaysShortThoughOneRunInAHundredTakesLong) {
  FunctionStatistics statistics;

  for (int i = 0; i < 10'000; ++i) {
    statistics.record(0, false, i % 100 == 99 ? 3ms : 2us);
    ASSERT_LT(statistics.usual(0), 5us) << i;
  }
}

TEST(FunctionStatistics, AFunctionThatIsSeenToTakeLongIsKnownToBeforeItEnds) {
  FunctionStatistics statistics;

  statistics.takes_more_than(0, 1ms);
  EXPECT_EQ(statistics.usual(0), 1ms);
  statistics.takes_more_than(0, 500us);
  EXPECT_EQ(statistics.usual(0), 1ms);
}

TEST(FunctionStatistics, CountsWhatAllThreadsRecord) {
  FunctionStatistics statistics;
  std::vector<std::thread> threads;
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([&] {
      statistics.record(0, false, 2us);
      statistics.record(0, true, -1ns);  // refused
    });
  }
  for (auto& thread : threads) thread.join();

  const std::vector<FunctionStats> all = statistics.summarize();

  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].served, 40u);
  EXPECT_EQ(all[0].failed, 20u);
  EXPECT_LE(all[0].handler.count, 20u);  // a race of two threads of one shard may lose a sample
  EXPECT_GT(all[0].handler.count, 0u);
}

TEST(FunctionStatistics, FunctionsThatWereLoadedLaterShareAPlace) {
  FunctionStatistics statistics;

  statistics.record(UINT32_MAX, false, 1us);
  statistics.record(UINT32_MAX - 1, false, 1us);

  const std::vector<FunctionStats> all = statistics.summarize();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "(others)");
  EXPECT_EQ(all[0].served, 2u);
}

}  // namespace
}  // namespace weft::rpc

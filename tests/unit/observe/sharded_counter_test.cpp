// SPDX-License-Identifier: BSD-3-Clause
#include "observe/sharded_counter.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace weft::observe {
namespace {

TEST(ShardedCounter, CountsWhatAllThreadsAdd) {
  ShardedCounter counter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 40; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) counter.add();
      counter.add(7);
    });
  }
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(counter.value(), 40'280u);
}

// One thing is always in progress, handed from thread to thread: it never looks as if there were
// none.
TEST(InProgress, IsNeverZeroWhileSomethingIsInProgress) {
  InProgress things;
  things.begin();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        things.begin();
        things.end();
      }
    });
  }

  for (int i = 0; i < 20'000; ++i) ASSERT_GE(things.value(), 1u);
  stop = true;
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(things.value(), 1u);
  things.end();
  EXPECT_EQ(things.value(), 0u);
}

}  // namespace
}  // namespace weft::observe

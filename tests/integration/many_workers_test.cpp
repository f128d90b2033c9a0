// As many workers on one host as it is asked to bear.
// SPDX-License-Identifier: BSD-3-Clause
#include <iostream>

#include <gtest/gtest.h>

#include "fault_scene.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 32;

SCENARIO(everybody_calls_everybody) {
  const auto start = Clock::now();
  init_rpc(worker(rank));
  const auto joined = Clock::now();
  for (int other = 0; other < world_size; ++other) {
    if (other != rank) REQUIRE_THAT(rpc_sync<echo>(worker(other), rank) == rank);
  }
  const auto called = Clock::now();
  const ShutdownReport report = shutdown();
  REQUIRE_THAT(report.lost_workers.empty());
  const auto seconds = [](Clock::duration taken) {
    return std::chrono::duration<double>(taken).count();
  };
  std::printf("init %.2f s, calls %.2f s, shutdown %.2f s\n", seconds(joined - start),
              seconds(called - joined), seconds(Clock::now() - called));
  return 0;
}

TEST(ManyWorkers, ThirtyTwoCallEachOtherWithinAMinute) {
  const auto start = Clock::now();
  Workers workers("everybody_calls_everybody", kWorkers);

  EXPECT_TRUE(workers.all_succeed(60s * kSlowness));

  std::cout << kWorkers << " workers took "
            << std::chrono::duration<double>(Clock::now() - start).count()
            << " s from the first process to the end of the last; worker 0: " << workers.output(0);
}

}  // namespace
}  // namespace weft::test

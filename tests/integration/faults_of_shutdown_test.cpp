// Shutdown when members are dead, when it is called too often, and when it is forgotten.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "fault_scene.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;
using Names = std::vector<std::string>;

constexpr auto kShutdown = 30s;

void report_shutdown(const Names& expected) {
  const auto start = Clock::now();
  const ShutdownReport report = shutdown();
  const std::chrono::duration<double> took = Clock::now() - start;
  std::string names;
  for (const std::string& name : report.lost_workers) names += " " + name;
  std::printf("shutdown took %.2f s; lost:%s\n", took.count(), names.c_str());
  REQUIRE_THAT(report.lost_workers == expected);
  REQUIRE_THAT(took < kShutdown);
}

// Everybody but the dead shuts down and names them.
void shut_down_without(Workers& workers, const std::vector<int>& dead, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) ASSERT_TRUE(workers.heard(rank, "met"));
  for (const int rank : dead) {
    workers.signal(rank, SIGKILL);
    ASSERT_EQ(workers.wait(rank), 128 + SIGKILL);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    if (std::find(dead.begin(), dead.end(), rank) == dead.end()) workers.release(rank);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    if (std::find(dead.begin(), dead.end(), rank) != dead.end()) continue;
    EXPECT_EQ(workers.wait(rank), 0) << workers.output(rank);
    std::cout << worker(rank) << ": " << workers.output(rank);
  }
}

Names lost_from_environment() {
  std::istringstream words(std::getenv("LOST"));
  return {std::istream_iterator<std::string>(words), {}};
}

SCENARIO(faults_shutdown_without_the_dead) {
  init_rpc(worker(rank));
  barrier();
  tell_test("met");
  wait_for_test();
  tell_test("shuts down");
  report_shutdown(lost_from_environment());
  return 0;
}

TEST(FaultsOfShutdown, DeadPeerIsNamed) {
  Workers workers("faults_shutdown_without_the_dead", 3, {{"LOST", "worker2"}});
  shut_down_without(workers, {2}, 3);
}

TEST(FaultsOfShutdown, DeadRank0IsNamed) {
  Workers workers("faults_shutdown_without_the_dead", 3, {{"LOST", "worker0"}});
  shut_down_without(workers, {0}, 3);
}

TEST(FaultsOfShutdown, SeveralDeadAreNamed) {
  Workers workers("faults_shutdown_without_the_dead", 4, {{"LOST", "worker0 worker1 worker3"}});
  shut_down_without(workers, {0, 1, 3}, 4);
}

// Killed while the others already wait for it, and before it says that it wants to end.
void dies_during_shutdown(int victim) {
  Workers workers("faults_shutdown_without_the_dead", 3, {{"LOST", worker(victim)}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(workers.heard(rank, "met"));
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    workers.release(rank);
    ASSERT_TRUE(workers.heard(rank, "shuts down"));
  }
  workers.signal(victim, SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(workers.wait(rank), 0) << workers.output(rank);
    std::cout << worker(rank) << ": " << workers.output(rank);
  }
}

TEST(FaultsOfShutdown, PeerThatDiesMeanwhileIsNamed) { dies_during_shutdown(2); }
TEST(FaultsOfShutdown, Rank0ThatDiesMeanwhileIsNamed) { dies_during_shutdown(0); }

SCENARIO(faults_shutdown_without_the_frozen) {
  init_rpc(worker(rank), impatient());
  barrier();
  tell_test("met");
  wait_for_test();
  report_shutdown({"worker2"});
  return 0;
}

TEST(FaultsOfShutdown, FrozenPeerIsNamed) {
  Workers workers("faults_shutdown_without_the_frozen", 3);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(workers.heard(rank, "met"));

  ASSERT_TRUE(freeze(workers.pid(2)));
  for (const int rank : {0, 1}) workers.release(rank);

  for (const int rank : {0, 1}) {
    EXPECT_EQ(workers.wait(rank), 0) << workers.output(rank);
    std::cout << worker(rank) << ": " << workers.output(rank);
  }
}

// Rank 0 still works while the others already wait for it in shutdown(); their connections break.
SCENARIO(faults_shutdown_and_broken_connections) {
  init_rpc(worker(rank));
  barrier();
  if (rank == 0) {
    rpc_sync<echo>("worker1", 1);
    rpc_sync<echo>("worker2", 1);
    // Both have reported; each report is a call that worker0 has not answered.
    REQUIRE_THAT(eventually([] { return debug_info().counters.at("connections.serving") >= 2; }));
    for (int64_t round = 0; round < 5; ++round) {
      break_connections();
      for (const char* name : {"worker1", "worker2"}) {
        REQUIRE_THAT(happens_within(
            1s, [name] { return !ending_of([name] { rpc_sync<echo>(name, 1); }).error; }));
      }
      REQUIRE_THAT(eventually([] { return debug_info().counters.at("connections.serving") >= 2; }));
    }
  }
  report_shutdown({});
  return 0;
}

TEST(FaultsOfShutdown, BrokenConnectionIsNoDeath) {
  Workers workers("faults_shutdown_and_broken_connections", 3);

  EXPECT_TRUE(scene_succeeds(workers));
  for (int rank = 0; rank < 3; ++rank) std::cout << worker(rank) << ": " << workers.output(rank);
}

SCENARIO(faults_shutdown_twice) {
  shutdown();  // before there is anything to shut down
  init_rpc(worker(rank));
  rpc_sync<echo>(worker(1 - rank), 1);
  ShutdownReport reports[2];
  std::thread other([&reports] { reports[1] = shutdown(); });
  reports[0] = shutdown();
  other.join();
  for (const ShutdownReport& report : reports) REQUIRE_THAT(report.lost_workers.empty());

  require_success(ending_of([] { shutdown(); }), 200ms);
  require_success(ending_of([] { shutdown(Shutdown::kNow); }), 200ms);
  require_ending(ending_of([rank] { rpc_sync<echo>(worker(1 - rank), 1); }),
                 {.code = ErrorCode::kNotInitialized, .may_have_run = false, .within = 200ms});
  return 0;
}

TEST(FaultsOfShutdown, TwiceAndFromTwoThreadsIsHarmless) {
  Workers workers("faults_shutdown_twice", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

// worker1 ends without shutdown() while a call of worker0 runs there and one of its own runs here.
SCENARIO(faults_shutdown_forgotten) {
  init_rpc(worker(rank));
  barrier();
  if (rank == 1) {
    const Future<int64_t> left_behind = rpc_async<hold>("worker0", 1);
    REQUIRE_THAT(eventually([] { return held() == 1 && rpc_sync<held>("worker0") == 1; }));
    tell_test("ends");
    return 0;
  }
  const Future<int64_t> running = rpc_async<hold>("worker1", 1);
  require_ending(ending_of([&running] { running.wait(); }), {.code = ErrorCode::kOutcomeUnknown,
                                                             .may_have_run = true,
                                                             .within = 5s,
                                                             .names = {"worker1", "hold"}});
  wait_for_test();  // it has ended
  require_ending(ending_of([] { rpc_sync<echo>("worker1", 1); }), {.code = ErrorCode::kUnavailable,
                                                                   .may_have_run = false,
                                                                   .within = 200ms,
                                                                   .names = {"worker1", "echo"}});
  let_go();
  report_shutdown({"worker1"});
  return 0;
}

TEST(FaultsOfShutdown, ForgottenIsHarmless) {
  Workers workers("faults_shutdown_forgotten", 2);
  ASSERT_TRUE(workers.heard(1, "ends"));
  const Stopwatch time;
  EXPECT_EQ(workers.wait(1), 0) << workers.output(1);
  const std::chrono::duration<double> took = time.read();
  EXPECT_LT(took, 2s * kSlowness);
  std::cout << "the process ended within " << took.count() << " s: " << workers.output(1);

  workers.release(0);
  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
  std::cout << workers.output(0);
}

}  // namespace
}  // namespace weft::test

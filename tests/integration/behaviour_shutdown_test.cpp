// What users rely on at the end of a group, between real processes.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <weft/rpc.h>

#include "support/scenario.h"

namespace weft::behaviour_shutdown_processes {

using namespace std::chrono_literals;
using test::eventually;
using test::Workers;

std::string name_of(int rank) { return "worker" + std::to_string(rank); }
std::string next() {
  Agent& here = current_agent();
  return name_of((here.info().id + 1) % static_cast<int>(here.members().size()));
}
int64_t twice(int64_t n) { return 2 * n; }

template <typename F>
ErrorCode code_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.code();
  }
  REQUIRE_THAT(!"it did not throw");
  std::abort();
}

// --- 4 -----------------------------------------------------------------------------------------

std::atomic<int> hops{0};
void hop(int64_t ttl) {
  ++hops;
  if (ttl > 1) rpc_async<hop>(next(), ttl - 1);
}
void hop_later(int64_t ttl) {
  ++hops;
  if (ttl <= 1) return;
  rpc_async<twice>(next(), ttl).then([ttl](int64_t) { rpc_async<hop_later>(next(), ttl - 1); });
}

SCENARIO(behaviour_chain) {
  for (int cycle = 1; cycle <= 3; ++cycle) {
    init_rpc(name_of(rank));
    hops = 0;
    barrier();
    if (cycle == 1 || rank == 0) rpc_async<hop>(next(), 4 * world_size);
    if (cycle == 1 || rank == 0) rpc_async<hop_later>(next(), 20);
    REQUIRE_THAT(shutdown().lost_workers.empty());
    // A lap of the ring takes world_size hops, so everybody has its share of every chain.
    const int chains = cycle == 1 ? world_size : 1;
    const int expected = chains * (4 + 20 / world_size);
    if (hops != expected) std::fprintf(stderr, "%d hops, not %d\n", hops.load(), expected);
    REQUIRE_THAT(hops == expected);
  }
  return 0;
}

TEST(Behaviour04_ShutdownWaitsForAChain, OfTwentyHopsOverProcesses) {
  Workers workers("behaviour_chain", 4);
  EXPECT_TRUE(workers.all_succeed());
}

// --- 5 -----------------------------------------------------------------------------------------

std::atomic<int> served{0};
int64_t some_work(int64_t turns) {
  volatile int64_t sum = 0;
  for (int64_t i = 0; i < turns; ++i) sum = sum + 1;
  ++served;
  return sum;
}

SCENARIO(behaviour_uneven) {
  init_rpc(name_of(rank));
  if (rank == 0) {
    for (int round = 0; round < 5; ++round) {
      std::vector<Future<int64_t>> calls;
      for (int i = 0; i < 200; ++i)
        calls.push_back(rpc_async<some_work>(1 + i % 2, 1000 * (i % 50)));
      REQUIRE_THAT(wait_all(calls)[51] == 1000);
    }
    for (int i = 0; i < 100; ++i) rpc_async<some_work>(2, 10'000);
  }
  std::vector<std::thread> threads;  // the others serve from within their shutdown
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] { REQUIRE_THAT(shutdown().lost_workers.empty()); });
  }
  for (std::thread& thread : threads) thread.join();
  const int expected = rank == 0 ? 0 : rank == 1 ? 500 : 600;
  if (served != expected) std::fprintf(stderr, "%d served, not %d\n", served.load(), expected);
  REQUIRE_THAT(served == expected);
  return 0;
}

TEST(Behaviour05_ShutdownWithUnevenWorkload, BetweenProcessesFromSeveralThreads) {
  Workers workers("behaviour_uneven", 3);
  EXPECT_TRUE(workers.all_succeed());
}

// --- 6 -----------------------------------------------------------------------------------------

std::atomic<int> inside{0};
void hang() {
  ++inside;
  eventually([] { return current_call::cancelled(); });
}

SCENARIO(behaviour_non_graceful) {
  init_rpc(name_of(rank));  // without traffic
  shutdown(Shutdown::kNow);
  shutdown(Shutdown::kNow);

  init_rpc(name_of(rank));
  const Future<void> to_peer = rpc_async<hang>((rank + 1) % 2);
  const Future<void> to_self = rpc_async<hang>(rank);
  REQUIRE_THAT(eventually([] { return inside == 2; }));
  if (rank == 1) {
    test::wait_for_test();
    const auto began = std::chrono::steady_clock::now();
    shutdown(Shutdown::kNow);
    REQUIRE_THAT(std::chrono::steady_clock::now() - began < 5s);
    REQUIRE_THAT(code_of([&] { to_peer.wait(); }) == ErrorCode::kShuttingDown);
    REQUIRE_THAT(code_of([&] { to_self.wait(); }) == ErrorCode::kShuttingDown);
    test::tell_test("down");
    test::wait_for_test();
    return 0;
  }
  test::tell_test("ready");
  REQUIRE_THAT(code_of([&] { to_peer.wait(); }) == ErrorCode::kOutcomeUnknown);
  REQUIRE_THAT(!to_self.ready());
  test::wait_for_test();  // the other one lives on without its agent
  REQUIRE_THAT(code_of([] { rpc_sync<twice>(1, 1); }) == ErrorCode::kUnavailable);
  shutdown(Shutdown::kNow);
  REQUIRE_THAT(code_of([&] { to_self.wait(); }) == ErrorCode::kShuttingDown);
  return 0;
}

TEST(Behaviour06_NonGracefulShutdown, WithAndWithoutTraffic) {
  Workers workers("behaviour_non_graceful", 2);
  ASSERT_TRUE(workers.heard(0, "ready"));
  workers.release(1);
  ASSERT_TRUE(workers.heard(1, "down"));
  workers.release(0);
  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
  workers.release(1);
  EXPECT_TRUE(workers.all_succeed());
}

SCENARIO(behaviour_no_shutdown) {
  init_rpc(name_of(rank));
  REQUIRE_THAT(rpc_sync<twice>((rank + 1) % world_size, 1) == 2);
  test::tell_test("called");
  test::wait_for_test();  // until the other one has called too
  if (rank == 0) rpc_async<hang>(1);
  return 0;
}

TEST(Behaviour06_NonGracefulShutdown, OrNoneAtAll) {
  Workers workers("behaviour_no_shutdown", 2);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(workers.heard(rank, "called"));
  for (int rank = 0; rank < 2; ++rank) workers.release(rank);
  EXPECT_TRUE(workers.all_succeed());
}

// --- 7 -----------------------------------------------------------------------------------------

SCENARIO(behaviour_shutdown_with_dead) {
  init_rpc(name_of(rank));
  barrier();
  test::tell_test("ready");
  test::wait_for_test();  // those that the test kills end here
  const auto began = std::chrono::steady_clock::now();
  const ShutdownReport report = shutdown();
  REQUIRE_THAT(std::chrono::steady_clock::now() - began < 30s);
  REQUIRE_THAT(report.lost_workers == (std::vector<std::string>{"worker0", "worker3"}));
  // Everything of the group is gone: a new one can be joined.
  REQUIRE_THAT(code_of([] { rpc_sync<twice>(1, 1); }) == ErrorCode::kNotInitialized);
  Options options;
  options.rank = rank - 1;
  options.world_size = 2;
  options.init_method = std::getenv("WEFT_RENDEZVOUS") + std::string("-survivors");
  init_rpc(name_of(rank), options);
  REQUIRE_THAT(rpc_sync<twice>(name_of(rank == 1 ? 2 : 1), 1) == 2);
  REQUIRE_THAT(shutdown().lost_workers.empty());
  return 0;
}

TEST(Behaviour07_ShutdownWithErrorsStillFinalises, WhenTheCoordinatorAndAnotherAreDead) {
  Workers workers("behaviour_shutdown_with_dead", 4);
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(workers.heard(rank, "ready"));
  workers.signal(0, SIGKILL);
  workers.signal(3, SIGKILL);
  ASSERT_EQ(workers.wait(0), 128 + SIGKILL);
  ASSERT_EQ(workers.wait(3), 128 + SIGKILL);

  workers.release(1);
  workers.release(2);

  EXPECT_EQ(workers.wait(1), 0) << workers.output(1);
  EXPECT_EQ(workers.wait(2), 0) << workers.output(2);
}

}  // namespace weft::behaviour_shutdown_processes

// Remote references between real processes: holders and owners that are killed, and very many of
// them.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <thread>

#include <gtest/gtest.h>

#include "fault_scene.h"
#include "support/scenario.h"
#include "weft/rref.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Thing {
  explicit Thing(int64_t n) : number(n) { ++alive; }
  Thing(const Thing&) = delete;
  ~Thing() { --alive; }
  int64_t get() const { return number; }
  int64_t stay() { return hold(number); }
  int64_t number;
  static inline std::atomic<int64_t> alive{0};
};
int64_t things_alive() { return Thing::alive; }
int64_t never() {
  for (;;) pause();
}
int64_t look_at(RRef<Thing> thing) { return thing.rpc_sync<&Thing::get>(); }
uint64_t counter(const std::string& name) { return debug_info().counters.at(name); }

// --- a holder dies ---------------------------------------------------------------------------

SCENARIO(faults_holder_is_killed) {
  constexpr int64_t kMany = 10'000;
  init_rpc(worker(rank));
  if (rank == 1) {
    std::vector<RRef<Thing>> held;
    for (int64_t i = 0; i < kMany; ++i) held.push_back(remote<Thing>("worker0", i));
    REQUIRE_THAT(held.back().rpc_sync<&Thing::get>() == kMany - 1);
    tell_test("holds");
    for (;;) pause();
  }
  REQUIRE_THAT(eventually([] { return Thing::alive == kMany; }));
  wait_for_test();  // which has killed it
  const auto killed = Clock::now();
  REQUIRE_THAT(Thing::alive == kMany);
  REQUIRE_THAT(eventually([] { return Thing::alive == 0; }, 15s));
  std::printf("freed after %.1f s\n", std::chrono::duration<double>(Clock::now() - killed).count());
  REQUIRE_THAT(counter("rrefs.owned") == 0 && counter("rrefs.holders") == 0);
  shutdown(Shutdown::kNow);
  return 0;
}

TEST(FaultsOfReferences, TheOwnerFreesWhatAKilledHolderHeld) {
  Workers workers("faults_holder_is_killed", 2);
  ASSERT_TRUE(workers.heard(1, "holds")) << workers.output(0) << workers.output(1);
  workers.signal(1, SIGKILL);
  workers.release(0);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
  std::cout << workers.output(0);
}

// --- the owner dies --------------------------------------------------------------------------

SCENARIO(faults_owner_is_killed) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const RRef<Thing> thing = remote<Thing>("worker1", 7);
  REQUIRE_THAT(rpc_sync<look_at>("worker2", thing) == 7);
  const RRef<int64_t> pending = remote<never>({"worker1", 0s});
  std::atomic<int> lost{0}, others{0};
  const auto expect_lost = [&](const auto& use) {
    try {
      use();
      ++others;
    } catch (const Error& error) {
      ++(error.code() == ErrorCode::kRRefLost ? lost : others);
      if (error.code() != ErrorCode::kRRefLost) std::printf("%s\n", error.what());
    }
  };
  const Future<int64_t> staying = thing.within(0s).rpc_async<&Thing::stay>();
  std::thread fetching([&] { expect_lost([&] { pending.to_here(0s); }); });
  std::thread calling([&] { expect_lost([&] { thing.within(0s).rpc_sync<&Thing::stay>(); }); });
  REQUIRE_THAT(eventually([] { return rpc_sync<held>("worker1") == 2; }));
  tell_test("waits");
  wait_for_test();  // which has killed it
  const Stopwatch since_killed;
  fetching.join();
  calling.join();
  expect_lost([&] { staying.wait(); });
  REQUIRE_THAT(since_killed.read() < 1s * kSlowness);
  expect_lost([&] { thing.rpc_sync<&Thing::get>(); });
  REQUIRE_THAT(lost == 4 && others == 0);
  // Somebody who held it too learns the same, and everybody else is served.
  const Ending shown = ending_of([&] { rpc_sync<look_at>({"worker2", 5s}, thing); });
  REQUIRE_THAT(shown.error.has_value());
  REQUIRE_THAT(rpc_sync<echo>("worker2", 3) == 3);
  REQUIRE_THAT(eventually([] { return counter("rrefs.unconfirmed") == 0; }));
  shutdown(Shutdown::kNow);
  return 0;
}

TEST(FaultsOfReferences, EveryWaitOnAKilledOwnerEnds) {
  Workers workers("faults_owner_is_killed", 3);
  ASSERT_TRUE(workers.heard(0, "waits")) << workers.output(0);
  workers.signal(1, SIGKILL);
  workers.release(0);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
}

// --- very many -------------------------------------------------------------------------------

SCENARIO(faults_reference_churn) {
  const char* wanted = std::getenv("WEFT_CHURN_CYCLES");
  const int64_t cycles = wanted ? std::atoll(wanted) : 10'000;
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const auto cycle = [](int64_t i) {
    const RRef<Thing> thing = remote<Thing>("worker1", i);
    REQUIRE_THAT(rpc_sync<look_at>("worker2", thing) == i);
  };
  for (int64_t i = 0; i < cycles / 10; ++i) cycle(i);
  const size_t before[] = {memory_now(), rpc_sync<memory_now>("worker1"),
                           rpc_sync<memory_now>("worker2")};
  const auto start = Clock::now();
  for (int64_t i = 0; i < cycles; ++i) cycle(i);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  REQUIRE_THAT(eventually([] { return rpc_sync<things_alive>("worker1") == 0; }));
  const auto empty = [] {
    return counter("rrefs.owned") + counter("rrefs.holders") + counter("rrefs.held") == 0;
  };
  REQUIRE_THAT(eventually(empty));
  for (const int other : {1, 2}) {
    REQUIRE_THAT(eventually([other] {
      return rpc_sync<[] {
               return counter("rrefs.owned") + counter("rrefs.holders") + counter("rrefs.held");
             }>(other) == 0;
    }));
  }
  const size_t after[] = {memory_now(), rpc_sync<memory_now>("worker1"),
                          rpc_sync<memory_now>("worker2")};
  for (int i = 0; i < 3; ++i) {
    std::printf("worker%d: %ld KiB more\n", i,
                (static_cast<long>(after[i]) - static_cast<long>(before[i])) / 1024);
    REQUIRE_THAT(!kMemoryShows || after[i] < before[i] + (size_t{4} << 20));
  }
  std::printf("%ld cycles, %.1f us each\n", cycles, 1e6 * seconds / static_cast<double>(cycles));
  return end_scene();
}

TEST(FaultsOfReferences, CreateShareAndDropLeavesNothing) {
  Workers workers("faults_reference_churn", 3);

  EXPECT_EQ(workers.wait(0, std::chrono::minutes(20)), 0) << workers.output(0);
  std::cout << workers.output(0);
}

}  // namespace
}  // namespace weft::test

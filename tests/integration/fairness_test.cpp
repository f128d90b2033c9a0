// Nobody holds up the calls of others: not a caller whose functions block by the hundred, not one
// that sends much, not those who saturate an object.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fault_scene.h"
#include "support/scenario.h"
#include "weft/rref.h"

namespace weft::test {
namespace {

double milliseconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// --- functions that wait for each other ----------------------------------------------------------

std::mutex meeting_mutex;
std::condition_variable met;
std::map<int64_t, int64_t> arrived;

// Returns when `all` calls with this number have come; Weft cannot see the wait.
void meet(int64_t all) {
  std::unique_lock lock(meeting_mutex);
  ++arrived[all];
  met.notify_all();
  met.wait(lock, [all] { return arrived[all] == all; });
}

// How long as many threads take to meet here and now: on a busy machine, long.
milliseconds time_of_threads(int64_t count) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) threads.emplace_back(meet, count);
  for (std::thread& each : threads) each.join();
  return std::chrono::ceil<milliseconds>(std::chrono::steady_clock::now() - start);
}

SCENARIO(fairness_functions_meet) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  for (const auto& [count, bound] : {std::pair<int64_t, milliseconds>{64, 500ms}, {500, 3000ms}}) {
    const Ending ending = ending_of([count = count] {
      std::vector<Future<void>> calls;
      for (int64_t i = 0; i < count; ++i) calls.push_back(rpc_async<meet>("worker1", count));
      wait_all(calls);
    });
    const milliseconds threads_took = time_of_threads(count);
    std::printf("%d functions met after %.0f ms, as many threads after %.0f ms\n",
                static_cast<int>(count), milliseconds_of(ending.took),
                milliseconds_of(threads_took));
    require_success(ending, bound + 5 * threads_took);
  }
  return end_scene();
}

TEST(Fairness, FunctionsThatWaitForEachOtherGetThreadsAtOnce) {
  Workers workers("fairness_functions_meet", 2);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0);
}

// --- a caller that asks for much -----------------------------------------------------------------

void sleep_for(int64_t milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}
int64_t count_values(const std::vector<std::string>& values) {
  return static_cast<int64_t>(values.size());
}

// The third worker calls the second all the time while the first loads it with `load`; each of its
// calls takes a moment only.
int hold_up_nobody(int rank, const std::function<void()>& load) {
  init_rpc(worker(rank));
  if (rank == 1) return serve();
  if (rank == 0) {
    rpc_sync<echo>("worker1", 1);
    barrier({"worker0", "worker2"});
    load();
    barrier({"worker0", "worker2"});
    return end_scene();
  }
  rpc_sync<echo>("worker1", 1);
  barrier({"worker0", "worker2"});
  std::vector<std::chrono::nanoseconds> took;
  const auto end = std::chrono::steady_clock::now() + 3s;
  while (std::chrono::steady_clock::now() < end) {
    const Ending ending = ending_of([] { rpc_sync<echo>("worker1", 1); });
    require_success(ending, 200ms);
    took.push_back(ending.took - ending.stalled);
  }
  std::sort(took.begin(), took.end());
  std::printf("%zu calls meanwhile: median %.3f ms, p99 %.1f ms, longest %.1f ms\n", took.size(),
              milliseconds_of(took[took.size() / 2]), milliseconds_of(took[took.size() * 99 / 100]),
              milliseconds_of(took.back()));
  barrier({"worker0", "worker2"});
  return serve();
}

SCENARIO(fairness_sleepers) {
  return hold_up_nobody(rank, [] {
    std::vector<Future<void>> calls;
    for (int i = 0; i < 1000; ++i) calls.push_back(rpc_async<sleep_for>("worker1", 2000));
    wait_all(calls);
  });
}

SCENARIO(fairness_values) {
  return hold_up_nobody(rank, [] {
    const size_t megabytes = std::getenv("WEFT_FAIRNESS_MEGABYTES")
                                 ? std::strtoul(std::getenv("WEFT_FAIRNESS_MEGABYTES"), nullptr, 10)
                                 : 60;
    const std::vector<std::string> values(megabytes << 16, "0123456");  // 16 bytes each on the wire
    REQUIRE_THAT(rpc_sync<count_values>({"worker1", 60s}, values) ==
                 static_cast<int64_t>(values.size()));
  });
}

class FairnessOfLoads : public testing::TestWithParam<const char*> {};

TEST_P(FairnessOfLoads, OfOneCallerHoldUpNoOther) {
  Workers workers(GetParam(), 3);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(2);
}

INSTANTIATE_TEST_SUITE_P(All, FairnessOfLoads,
                         testing::Values("fairness_sleepers", "fairness_values"),
                         [](const auto& each) { return std::string(each.param); });

// --- a saturated object --------------------------------------------------------------------------

struct Counter {
  static constexpr bool kSerialized = true;
  // Takes so long that a call always waits for the one before it.
  int64_t count() {
    const auto end = std::chrono::steady_clock::now() + 100us;
    while (std::chrono::steady_clock::now() < end) {
    }
    return ++counted;
  }
  int64_t counted = 0;
};

std::mutex shared_mutex;
RRef<Counter> shared_counter;
void share(const RRef<Counter>& counter) {
  std::lock_guard lock(shared_mutex);
  shared_counter = counter;
}
RRef<Counter> the_counter() {
  std::lock_guard lock(shared_mutex);
  return shared_counter;
}

// Worker 1 owns the object, 2 to 5 saturate it, 6 comes later. Worker 1 holds a reference of an
// object of worker 0, whose lease it must renew meanwhile.
SCENARIO(fairness_saturated_object) {
  Options options;
  options.rref_lease = 1000ms * kSlowness;
  init_rpc(worker(rank), options);
  const std::vector<std::string> callers{"worker0", "worker2", "worker3",
                                         "worker4", "worker5", "worker6"};
  if (rank == 0) {
    RRef<Counter> counter = remote<Counter>("worker1");
    for (int caller = 2; caller <= 5; ++caller) rpc_sync<share>(caller, counter);
    rpc_sync<share>("worker1", RRef<Counter>(Counter()));  // owned here, held there
    barrier(callers);
    barrier(callers);
    REQUIRE_THAT((rpc_sync<the_counter>("worker1").rpc_sync<&Counter::count>() > 0));
    rpc_sync<share>("worker1", RRef<Counter>());
    return end_scene();
  }
  if (rank == 1) return serve();
  barrier(callers);
  if (rank == 6) {
    std::this_thread::sleep_for(1s);  // the load is on
    const Ending ending = ending_of([] { rpc_sync<echo>("worker1", 1); });
    std::printf("the first call of another worker took %.1f ms\n", milliseconds_of(ending.took));
    require_success(ending, 100ms);
  } else {
    const auto end = std::chrono::steady_clock::now() + 3s * kSlowness;
    std::vector<std::thread> threads;
    const RRef<Counter> counter = the_counter();
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&counter, end] {
        while (std::chrono::steady_clock::now() < end) counter.rpc_sync<&Counter::count>();
      });
    }
    for (auto& thread : threads) thread.join();
  }
  share(RRef<Counter>());
  barrier(callers);
  return serve();
}

TEST(Fairness, ASaturatedObjectHoldsUpNeitherNewcomersNorLeases) {
  Workers workers("fairness_saturated_object", 7);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(6);
}

}  // namespace
}  // namespace weft::test

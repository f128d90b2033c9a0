// Workers of which one allocation fails, or all large ones for a while, at each point in turn of
// receiving, running and answering a call, or of making one: the worker lives, whoever waits gets
// the result or an error of Weft's, and calls work again when there is memory again.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <iostream>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "arena/arena.h"
#include "collective/neighbours.h"
#include "failing_memory.h"
#include "fault_scene.h"

namespace weft::test {
namespace {

constexpr auto kShortage = 3ms;
constexpr int kLastPoint = 60;  // more than a call allocates
constexpr auto kNap = 2ms;
constexpr size_t kNaps = 6;

std::atomic<int64_t> runs{0};

// One allocation of whatever size, or all large ones.
enum class Lacking { kOne, kAllLarge };

void fail_after(int64_t after, Lacking lacking) {
  constexpr int64_t kLargeBytes = 16 << 10;
  if (lacking == Lacking::kOne) return fail_allocations({after, 1, 0, kShortage});
  fail_allocations({after, std::numeric_limits<int64_t>::max(), kLargeBytes, kShortage});
}
int64_t failures() { return failed_allocations(); }
int64_t run_count() { return runs; }
int64_t run_with_number(int64_t value) { return ++runs, value; }
std::string run_with_text(std::string text) { return ++runs, text; }
at::Tensor run_with_tensor(at::Tensor tensor) { return ++runs, tensor; }

std::atomic<int64_t> naps_taken{0};
int64_t nap_count() { return naps_taken; }
int64_t run_with_nap(int64_t value) {
  std::this_thread::sleep_for(kNap);
  return ++naps_taken, value;
}

constexpr auto kShortTimeout = 1ms;
int64_t outlast(int64_t value) {
  std::this_thread::sleep_for(2 * kShortTimeout);
  return value;
}

// How often calls that met with a shortage have run.
struct Runs {
  int64_t least = 0;
  int64_t most = 0;
};

template <typename F>
Runs runs_of(const F& call) {
  try {
    call();
    return {1, 1};
  } catch (const Error& error) {
    const ErrorCode code = error.code();
    REQUIRE_THAT(code == ErrorCode::kLimitExceeded || code == ErrorCode::kOutcomeUnknown ||
                 code == ErrorCode::kUnavailable || code == ErrorCode::kRemoteError ||
                 code == ErrorCode::kPeerLost || code == ErrorCode::kTimeout);
    return {0, error.may_have_run() ? 1 : 0};
  } catch (const std::bad_alloc&) {  // the caller's own: before anything was sent
    return {};
  }
}

Runs all_naps;

// More at once than threads stand by for, so that further threads begin.
Runs call_naps() {
  static std::vector<Future<int64_t>> naps;  // keeps its memory, so that it is not what lacks
  naps.clear();
  naps.reserve(kNaps);
  for (size_t i = 0; i < kNaps; ++i)
    runs_of([] { naps.push_back(rpc_async<run_with_nap>("worker1", 1)); });
  for (const Future<int64_t>& nap : naps) {
    const Runs one = runs_of([&nap] { nap.wait(); });
    all_naps.least += one.least;
    all_naps.most += one.most;
  }
  return {};
}

// Their time is over before there is an answer; the thread that waits sees to the first, the I/O
// loop to the second. Neither counts as a run.
Runs call_in_vain() {
  for (const bool waits : {true, false}) {
    runs_of([waits] {
      const auto call = rpc_async<outlast>({"worker1", kShortTimeout}, 1);
      (waits ? call : call.then([](int64_t value) { return value; })).wait();
    });
  }
  return {};
}

// Naps may go on when their connection is gone, and are counted at the end.
bool naps_are_as_their_outcomes() {
  return eventually([] {
    const int64_t taken = rpc_sync<nap_count>("worker1");
    return all_naps.least <= taken && taken <= all_naps.most;
  });
}

// One call of each kind that takes a way of its own: in one frame, in pieces, with a tensor in the
// frame, with one beside it; several that block; and some whose time is over. The tensors are made
// before anything fails: libtorch ends a process that lacks memory in places of its own.
Runs call_of_kind(int kind) {
  static const at::Tensor small = at::ones({4});
  static const at::Tensor large = at::ones({1 << 18});
  switch (kind) {
    case 0:
      return runs_of([] { rpc_sync<run_with_number>("worker1", 1); });
    case 1:
      return runs_of([] { rpc_sync<run_with_text>("worker1", std::string(3 << 20, 'x')); });
    case 2:
      return runs_of([] { rpc_sync<run_with_tensor>("worker1", small); });
    case 3:
      return runs_of([] { rpc_sync<run_with_tensor>("worker1", large); });
    case 4:
      return call_naps();
    default:
      return call_in_vain();
  }
}
constexpr int kKinds = 6;

// Calls until one succeeds: connections that were lost are made again meanwhile.
template <typename F>
auto when_there_is_memory(const F& call) {
  std::optional<decltype(call())> result;
  REQUIRE_THAT(eventually([&] {
    try {
      result = call();
    } catch (const Error&) {
    }
    return result.has_value();
  }));
  return *result;
}

template <typename F>
void visit_each_point(const F& visit) {
  for (const Lacking lacking : {Lacking::kOne, Lacking::kAllLarge}) {
    for (int kind = 0; kind < kKinds; ++kind) {
      for (int after = 0; after < kLastPoint; ++after) visit(kind, after, lacking);
    }
  }
}

SCENARIO(faults_allocations_of_a_callee) {
  init_rpc(worker(rank));
  if (rank == 1) return serve();
  for (int kind = 0; kind < kKinds; ++kind) call_of_kind(kind);
  visit_each_point([](int kind, int64_t after, Lacking lacking) {
    const int64_t before = when_there_is_memory([] { return rpc_sync<run_count>("worker1"); });
    runs_of([&] { rpc_sync<fail_after>("worker1", after, lacking); });
    const Runs expected = call_of_kind(kind);
    const int64_t now = when_there_is_memory([] { return rpc_sync<run_count>("worker1"); });
    REQUIRE_THAT(expected.least <= now - before && now - before <= expected.most);
  });
  std::printf(
      "%lld allocations failed\n",
      static_cast<long long>(when_there_is_memory([] { return rpc_sync<failures>("worker1"); })));
  REQUIRE_THAT(kSlowness > 1 || rpc_sync<failures>("worker1") > 0);
  REQUIRE_THAT(naps_are_as_their_outcomes());
  return end_scene();
}

SCENARIO(faults_allocations_of_a_caller) {
  init_rpc(worker(rank));
  if (rank == 1) return serve();
  for (int kind = 0; kind < kKinds; ++kind) call_of_kind(kind);
  visit_each_point([](int kind, int64_t after, Lacking lacking) {
    const int64_t before = when_there_is_memory([] { return rpc_sync<run_count>("worker1"); });
    fail_after(after, lacking);
    const Runs expected = call_of_kind(kind);
    fail_allocations({});
    const int64_t now = when_there_is_memory([] { return rpc_sync<run_count>("worker1"); });
    REQUIRE_THAT(expected.least <= now - before && now - before <= expected.most);
  });
  std::printf("%lld allocations failed\n", static_cast<long long>(failed_allocations()));
  REQUIRE_THAT(kSlowness > 1 || failed_allocations() > 0);
  REQUIRE_THAT(naps_are_as_their_outcomes());
  return end_scene();
}

// Each allocation of libtorch's fails in turn while a share in the arena becomes a tensor.
TEST(FaultsOfAllocationsHere, LeaveTheArenaAsItWas) {
  arena::Arena* const arena = arena::Arena::of_this_process();
  if (!arena) GTEST_SKIP() << "this system has no memory of this kind";
  const std::vector<at::Tensor> like{at::ones({1 << 18})};
  const size_t before = arena->usage().used_bytes;
  const int64_t failed_before = failed_allocations();
  for (int64_t after = 0; after < 20; ++after) {
    fail_allocations({after, 1, 0, 1min});
    try {
      collective::tensors_for_neighbours(like);
    } catch (const std::bad_alloc&) {
    }
    fail_allocations({});
    EXPECT_EQ(arena->usage().used_bytes, before) << after;
  }
  EXPECT_TRUE(kSlowness > 1 || failed_allocations() > failed_before);
}

class FaultsOfAllocations : public testing::TestWithParam<const char*> {};

TEST_P(FaultsOfAllocations, EndACallAtMostAndTheWorkerGoesOn) {
  for (const char* transport : {"nearest", "tcp"}) {
    Workers workers(GetParam(), 2, {{"WEFT_TRANSPORT", transport}});
    EXPECT_TRUE(scene_succeeds(workers)) << transport;
    std::cout << workers.output(0) << workers.output(1);
  }
}
INSTANTIATE_TEST_SUITE_P(All, FaultsOfAllocations,
                         testing::Values("faults_allocations_of_a_callee",
                                         "faults_allocations_of_a_caller"));

}  // namespace
}  // namespace weft::test

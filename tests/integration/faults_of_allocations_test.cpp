// Workers of which one allocation fails, or all large ones for a while, at each point in turn of
// receiving, running and answering a call, or of making one: the worker lives, whoever waits gets
// the result or an error of Weft's, and calls work again when there is memory again.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <iostream>
#include <limits>
#include <new>
#include <string>

#include <gtest/gtest.h>

#include "failing_memory.h"
#include "fault_scene.h"

namespace weft::test {
namespace {

constexpr auto kShortage = 3ms;
constexpr int kLastPoint = 60;  // more than a call allocates

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

// One call of each kind that takes a way of its own: in one frame, in pieces, with a tensor in the
// frame, with one beside it. The tensors are made before anything fails: libtorch ends a process
// that lacks memory in places of its own.
void call_of_kind(int kind) {
  static const at::Tensor small = at::ones({4});
  static const at::Tensor large = at::ones({1 << 18});
  switch (kind) {
    case 0:
      return void(rpc_sync<run_with_number>("worker1", 1));
    case 1:
      return void(rpc_sync<run_with_text>("worker1", std::string(3 << 20, 'x')));
    case 2:
      return void(rpc_sync<run_with_tensor>("worker1", small));
    default:
      return void(rpc_sync<run_with_tensor>("worker1", large));
  }
}
constexpr int kKinds = 4;

// What a call that met with a shortage may end with; whether it may have run.
template <typename F>
bool may_have_run_after(const F& call) {
  try {
    call();
    return true;
  } catch (const Error& error) {
    const ErrorCode code = error.code();
    REQUIRE_THAT(code == ErrorCode::kLimitExceeded || code == ErrorCode::kOutcomeUnknown ||
                 code == ErrorCode::kUnavailable || code == ErrorCode::kRemoteError ||
                 code == ErrorCode::kPeerLost);
    return error.may_have_run();
  } catch (const std::bad_alloc&) {  // the caller's own: before anything was sent
    return false;
  }
}

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
    may_have_run_after([&] { rpc_sync<fail_after>("worker1", after, lacking); });
    const bool may_have_run = may_have_run_after([&] { call_of_kind(kind); });
    const int64_t now = when_there_is_memory([] { return rpc_sync<run_count>("worker1"); });
    REQUIRE_THAT(now - before == 0 || (now - before == 1 && may_have_run));
  });
  std::printf(
      "%lld allocations failed\n",
      static_cast<long long>(when_there_is_memory([] { return rpc_sync<failures>("worker1"); })));
  REQUIRE_THAT(kSlowness > 1 || rpc_sync<failures>("worker1") > 0);
  return end_scene();
}

SCENARIO(faults_allocations_of_a_caller) {
  init_rpc(worker(rank));
  if (rank == 1) return serve();
  for (int kind = 0; kind < kKinds; ++kind) call_of_kind(kind);
  visit_each_point([](int kind, int64_t after, Lacking lacking) {
    const int64_t before = when_there_is_memory([] { return rpc_sync<run_count>("worker1"); });
    fail_after(after, lacking);
    const bool may_have_run = may_have_run_after([&] { call_of_kind(kind); });
    fail_allocations({});
    const int64_t now = when_there_is_memory([] { return rpc_sync<run_count>("worker1"); });
    REQUIRE_THAT(now - before == 0 || (now - before == 1 && may_have_run));
  });
  std::printf("%lld allocations failed\n", static_cast<long long>(failed_allocations()));
  REQUIRE_THAT(kSlowness > 1 || failed_allocations() > 0);
  return end_scene();
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

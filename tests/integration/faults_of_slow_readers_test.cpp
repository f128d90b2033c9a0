// Peers that do not take what is sent to them: the window holds the sender back, and nobody else.
// SPDX-License-Identifier: BSD-3-Clause
#include <malloc.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include <gtest/gtest.h>

#include "fault_scene.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRoundTrip = 200ms;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kWindow = 64 * kMiB;
constexpr size_t kCallBytes = 10'000'000;
constexpr int kFitting = 6;  // into the window

at::Tensor large(int value) {
  return at::full({static_cast<int64_t>(kCallBytes)}, value, at::kByte);
}

int64_t hold_large(at::Tensor tensor) { return hold(tensor.numel()); }
int64_t relay_echo(int64_t value) { return rpc_sync<echo>("worker1", value); }

// Calls of as many threads, which must all wait for room until their deadline.
std::vector<std::thread> call_without_room(int threads, milliseconds deadline) {
  std::vector<std::thread> callers;
  for (int i = 0; i < threads; ++i) {
    callers.emplace_back([i, deadline] {
      const at::Tensor mine = large(i);
      require_ending(ending_of([&] {
                       rpc_async<swallow>({"worker1", deadline}, mine).wait();
                     }),
                     {.code = ErrorCode::kTimeout,
                      .may_have_run = false,
                      .after = deadline,
                      .within = deadline + 300ms,
                      .names = {"worker1", "swallow"}});
    });
  }
  return callers;
}

SCENARIO(faults_window_and_stuck_handlers) {
  Options options = impatient();
  options.connections_per_peer = 1;  // which is not made anew
  init_rpc(worker(rank), options);
  if (rank != 0) return serve();
  rpc_sync<echo>("worker2", 1);
  std::vector<Future<int64_t>> fitting;
  for (int i = 0; i < kFitting; ++i) fitting.push_back(rpc_async<hold_large>("worker1", large(i)));
  REQUIRE_THAT(eventually([] { return rpc_sync<held>("worker1") == kFitting; }));

  // For more than the time after which a peer that says nothing is given up.
  const auto start = Clock::now();
  std::vector<std::thread> callers = call_without_room(4, 1500ms);
  while (Clock::now() < start + 1300ms) {
    require_success(ending_of([] { rpc_sync<echo>("worker2", 1); }), kRoundTrip);
    require_success(ending_of([] { rpc_sync<relay_echo>("worker2", 1); }), kRoundTrip);
    require_success(ending_of([] { rpc_sync<echo>("worker1", 1); }), kRoundTrip);
  }
  for (auto& caller : callers) caller.join();
  for (const PeerStats& peer : debug_info().peers) REQUIRE_THAT(peer.connects == 1);

  rpc_sync<let_go>("worker1");
  for (const int64_t bytes : wait_all(fitting)) REQUIRE_THAT(bytes == kCallBytes);
  require_success(ending_of([] { rpc_sync<swallow>("worker1", large(1)); }), 1s);
  REQUIRE_THAT(rpc_sync<swallowed>("worker1") == 1);
  return end_scene();
}

TEST(FaultsOfSlowReaders, StuckHandlersFillTheWindowAndHoldUpNobodyElse) {
  Workers workers("faults_window_and_stuck_handlers", 3);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(faults_window_and_frozen_callee) {
  // On a slow machine the calls last longer than the default, and what follows a verdict, a new
  // connection with a window of its own, is not the subject here.
  Options options;
  options.dead_after = 1min;
  init_rpc(worker(rank), options);
  if (rank != 0) return serve();
  const pid_t victim = rpc_sync<process_id>("worker1");
  rpc_sync<echo>("worker2", 1);
  REQUIRE_THAT(freeze(victim));
  // What is freed goes back to the system, so that resident memory shows what is held.
  REQUIRE_THAT(!kMemoryShows || mallopt(M_MMAP_THRESHOLD, static_cast<int>(kMiB)) == 1);
  const size_t before = resident_bytes(getpid());

  // As the original accepts them: 150 calls of 10 MB, one after the other, whoever gives up.
  std::vector<Future<void>> calls;
  size_t most = 0;
  for (int i = 0; i < 150; ++i) {
    calls.push_back(rpc_async<swallow>({"worker1", 20ms}, large(i)));
    most = std::max(most, resident_bytes(getpid()));
    if (i % 10 == 0) require_success(ending_of([] { rpc_sync<echo>("worker2", 1); }), kRoundTrip);
  }
  std::printf("resident memory grew by %zu MiB\n", (most - before) / kMiB);
  int64_t may_have_run = 0;
  for (const Future<void>& call : calls) {
    REQUIRE_THAT(happens_within(1s, [&] { return call.ready(); }));
    // Each waits for an answer, or for room, to its deadline.
    REQUIRE_THAT(call.error() && call.error()->code() == ErrorCode::kTimeout);
    may_have_run += call.error()->may_have_run();
  }

  thaw(victim);
  // Whatever was still to be sent is served before this.
  const int64_t ran = rpc_sync<swallowed>("worker1");
  std::printf("%ld may have run, %ld did\n", may_have_run, ran);
  REQUIRE_THAT(ran <= may_have_run);
  REQUIRE_THAT(!kMemoryShows || most < before + kWindow + 3 * kCallBytes);
  require_success(ending_of([] { rpc_sync<swallow>("worker1", large(1)); }), 1s);
  return end_scene();
}

TEST(FaultsOfSlowReaders, FrozenCalleeCostsNoMoreThanTheWindow) {
  Workers workers("faults_window_and_frozen_callee", 3);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0);
}

SCENARIO(faults_lost_with_a_full_window) {
  init_rpc(worker(rank), impatient());
  if (rank != 0) return serve();
  const pid_t victim = rpc_sync<process_id>("worker1");
  rpc_sync<echo>("worker2", 1);
  REQUIRE_THAT(freeze(victim));
  watch_stalls();
  const auto start = Clock::now();

  std::vector<Future<void>> calls;
  for (int i = 0; i < kFitting; ++i) calls.push_back(rpc_async<swallow>({"worker1", 0s}, large(i)));
  // Waits for room until the peer is given up; what comes then goes to a new connection.
  std::atomic<int64_t> may_have_run{0};
  std::thread waiting([&may_have_run] {
    const Ending ending = ending_of([] { rpc_sync<swallow>({"worker1", 2s}, large(9)); });
    REQUIRE_THAT(ending.error && ending.error->code() == ErrorCode::kTimeout);
    may_have_run += ending.error->may_have_run();
  });
  for (const Future<void>& call : calls) {
    REQUIRE_THAT(happens_within(2s, [&] { return call.ready(); }));
    const Ending ending = ending_since(start, call.error());
    const bool sent = ending.error && ending.error->may_have_run();
    may_have_run += sent;
    require_ending(ending, {.code = sent ? ErrorCode::kPeerLost : ErrorCode::kUnavailable,
                            .may_have_run = sent,
                            .within = 900ms,
                            .names = {"worker1", "swallow"}});
  }
  waiting.join();

  thaw(victim);
  const int64_t ran = rpc_sync<swallowed>("worker1");
  std::printf("%ld may have run, %ld did\n", may_have_run.load(), ran);
  REQUIRE_THAT(ran <= may_have_run);
  return end_scene();
}

TEST(FaultsOfSlowReaders, FullWindowEndsWithThePeerThatFilledIt) {
  Workers workers("faults_lost_with_a_full_window", 3);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0);
}

}  // namespace
}  // namespace weft::test

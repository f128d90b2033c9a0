// Workers of one host, through shared memory.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>

#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "fault_scene.h"

namespace weft::test {
namespace {

at::Tensor negate(const at::Tensor& tensor) { return -tensor; }

void join_nearest(int rank) {
  Options options;
  options.transport = Options::Transport::kNearest;
  init_rpc(worker(rank), options);
}

PeerStats stats_of(const std::string& name) {
  for (const PeerStats& peer : debug_info().peers) {
    if (peer.name == name) return peer;
  }
  return {};
}

SCENARIO(same_host_calls) {
  join_nearest(rank);
  if (rank != 0) return serve();
  for (const int64_t elements : {0, 1, 1000, 100'000, 1 << 20, 16 << 20}) {
    const at::Tensor tensor = at::arange(elements);
    REQUIRE_THAT(rpc_sync<negate>("worker1", tensor).equal(-tensor));
  }
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int64_t k = 0; k < 500; ++k) REQUIRE_THAT(rpc_sync<echo>("worker1", i * k) == i * k);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 5000; ++i) calls.push_back(rpc_async<echo>("worker1", i));
  for (int64_t i = 0; i < 5000; ++i) REQUIRE_THAT(calls[static_cast<size_t>(i)].wait() == i);
  const PeerStats stats = stats_of("worker1");
  REQUIRE_THAT(stats.transport == "shm" && stats.detour.empty());
  return end_scene();
}

TEST(SameHost, CallsAndTensorsGoThroughSharedMemory) {
  Workers workers("same_host_calls", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(same_host_mixed) {
  if (rank == 1) {
    Options options;
    options.transport = Options::Transport::kTcp;
    init_rpc(worker(rank), options);
    REQUIRE_THAT(rpc_sync<echo>("worker0", 7) == 7);  // whose address has both ways
    return serve();
  }
  join_nearest(rank);
  REQUIRE_THAT(rpc_sync<echo>("worker1", 7) == 7);
  const PeerStats stats = stats_of("worker1");
  REQUIRE_THAT(stats.transport == "tcp");
  REQUIRE_THAT(stats.detour.find("offers no shared memory") != std::string::npos);
  return end_scene();
}

TEST(SameHost, AWorkerThatSharesNothingIsReachedOverTcp) {
  Workers workers("same_host_mixed", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(same_host_killed) {
  join_nearest(rank);
  if (rank != 0) return serve();
  const pid_t victim = rpc_sync<process_id>("worker1");
  const Future<int64_t> call = rpc_async<hold>("worker1", 1);
  REQUIRE_THAT(eventually([] { return rpc_sync<held>("worker1") == 1; }));
  kill(victim, SIGKILL);
  const Ending ending = ending_of([&call] { call.wait(); });
  require_ending(ending, {.code = ErrorCode::kOutcomeUnknown,
                          .may_have_run = true,
                          .within = 200ms,
                          .names = {"worker1", "hold"}});
  require_ending(ending_of([] { rpc_sync<echo>("worker1", 1); }), {.code = ErrorCode::kUnavailable,
                                                                   .may_have_run = false,
                                                                   .within = 200ms,
                                                                   .names = {"worker1", "echo"}});
  shutdown(Shutdown::kNow);
  return 0;
}

TEST(SameHost, TheDeathOfAWorkerIsNoticedAtOnce) {
  Workers workers("same_host_killed", 2);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
}

TEST(SameHost, AnUnknownTransportIsRefused) {
  Workers workers("same_host_default", 1, {{"WEFT_TRANSPORT", "carrier pigeon"}});

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
}

SCENARIO(same_host_default) {
  const Ending ending = ending_of([rank] { init_rpc(worker(rank)); });
  require_ending(ending, {.code = ErrorCode::kInvalidArgument,
                          .may_have_run = false,
                          .within = 10s,
                          .names = {"WEFT_TRANSPORT", "carrier pigeon", "nearest"}});
  return 0;
}

}  // namespace
}  // namespace weft::test

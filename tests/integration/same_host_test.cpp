// Workers of one host, through shared memory.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>

#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
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

// --- tensors in shared memory ----------------------------------------------------------------

constexpr int64_t kMany = 1 << 18;  // elements: 1 MiB of floats

uint64_t shared_bytes() { return debug_info().counters["memory.shared"]; }
uint64_t shared_loans() { return debug_info().counters["memory.shared.loans"]; }
bool nothing_is_shared() { return shared_bytes() == 0 && shared_loans() == 0; }

std::vector<at::Tensor> kept;
void keep(const at::Tensor& tensor) { kept.push_back(tensor); }
double sum_of_kept() {
  double sum = 0;
  for (const at::Tensor& tensor : kept) sum += tensor.sum().item<double>();
  return sum;
}
void drop_kept() { kept.clear(); }
at::Tensor first_kept() { return kept.at(0); }
uint64_t shared_bytes_there() { return shared_bytes(); }

SCENARIO(same_host_copies) {
  join_nearest(rank);
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);  // connects
  at::Tensor tensor = at::ones({kMany});
  rpc_sync<keep>("worker1", tensor);
  REQUIRE_THAT(shared_bytes() == 1 << 20 && shared_loans() == 1);
  tensor.add_(1);
  REQUIRE_THAT(rpc_sync<sum_of_kept>("worker1") == kMany);  // what was sent, not what became of it

  at::Tensor result = rpc_sync<first_kept>("worker1");
  result.add_(5);
  REQUIRE_THAT(rpc_sync<sum_of_kept>("worker1") == kMany);  // a result is nobody else's
  REQUIRE_THAT(rpc_sync<shared_bytes_there>("worker1") == 1 << 20);
  REQUIRE_THAT(result.equal(at::full({kMany}, 6.0)));
  result.reset();
  REQUIRE_THAT(rpc_sync<shared_bytes_there>("worker1") == 0);

  rpc_sync<drop_kept>("worker1");
  REQUIRE_THAT(nothing_is_shared());
  return end_scene();
}

TEST(SameHost, TensorsAreCopiesThatLieInTheSendersMemory) {
  Workers workers("same_host_copies", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

at::Tensor all_kinds(const std::vector<at::Tensor>& tensors, int64_t which) {
  return tensors.at(static_cast<size_t>(which)) * 2;
}

SCENARIO(same_host_kinds) {
  join_nearest(rank);
  if (rank != 0) return serve();
  const at::Tensor base = at::arange(4 * kMany).view({1024, -1});
  const at::Tensor indices = at::stack({at::arange(kMany), at::arange(kMany) % 4});
  std::vector<at::Tensor> tensors = {
      at::arange(10),  // in the frame
      base,
      base.t(),
      base.slice(0, 3, 1000, 2),
      base.slice(1, 0, 1),  // gathered
      at::zeros({0}),
      at::sparse_coo_tensor(indices, at::arange(kMany), {kMany, 4}),
      base.to(at::kDouble),
      at::ones({1}).expand({kMany}),
  };
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor doubled = rpc_sync<all_kinds>("worker1", tensors, static_cast<int64_t>(i));
      REQUIRE_THAT(doubled.sizes() == tensors[i].sizes());
      REQUIRE_THAT(doubled.to_dense().equal((tensors[i] * 2).to_dense()));
    }
  }
  REQUIRE_THAT(eventually([] { return shared_loans() == 0; }));
  return end_scene();
}

TEST(SameHost, EveryKindOfTensorArrives) {
  Workers workers("same_host_kinds", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(same_host_limit) {
  Options options;
  options.transport = Options::Transport::kNearest;
  options.shared_memory_bytes = 2 << 20;
  init_rpc(worker(rank), options);
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  for (int i = 0; i < 4; ++i) rpc_sync<keep>("worker1", at::ones({kMany}));
  REQUIRE_THAT(shared_bytes() == 2 << 20);
  REQUIRE_THAT(rpc_sync<sum_of_kept>("worker1") == 4 * kMany);  // the others went in their frames
  rpc_sync<drop_kept>("worker1");
  REQUIRE_THAT(nothing_is_shared());
  return end_scene();
}

TEST(SameHost, BeyondTheLimitTensorsGoInTheirFrames) {
  Workers workers("same_host_limit", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(same_host_widow) {
  join_nearest(rank);
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  at::Tensor mine = at::ones({16 * kMany});
  rpc_sync<keep>("worker1", mine);  // of which the dead worker will not say that it has dropped it
  const at::Tensor left = rpc_sync<first_kept>("worker1");
  REQUIRE_THAT(shared_loans() == 1);
  kill(rpc_sync<process_id>("worker1"), SIGKILL);
  REQUIRE_THAT(ending_of([] { rpc_sync<echo>("worker1", 1); }).error.has_value());
  REQUIRE_THAT(left.equal(mine));  // lives on in the memory of the dead
  left.add_(1);
  REQUIRE_THAT(left.sum().item<double>() == 2 * 16 * kMany);
  REQUIRE_THAT(eventually([] { return nothing_is_shared(); }));
  shutdown(Shutdown::kNow);
  return 0;
}

TEST(SameHost, ADeadWorkersTensorsLiveAndWhatItBorrowedComesBack) {
  Workers workers("same_host_widow", 2);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
}

// --- without a copy --------------------------------------------------------------------------

double total(Borrowed<at::Tensor> tensor) { return tensor.get().sum().item<double>(); }
double changing(Borrowed<at::Tensor> tensor) {
  at::Tensor mine = tensor.get();
  return mine.add_(1).sum().item<double>();
}
void keeping(Borrowed<at::Tensor> tensor) { kept.push_back(tensor.get()); }
void keeping_a_part(Borrowed<at::Tensor> tensor) { kept.push_back(tensor.get().slice(0, 0, 5)); }
at::Tensor returning(Borrowed<at::Tensor> tensor) { return tensor.get(); }
at::Tensor ones(int64_t elements) { return at::ones({elements}); }
at::Tensor ones_that_stay(int64_t elements) {
  kept.push_back(at::ones({elements}));
  return kept.back();
}
at::Tensor view_of_ones(int64_t elements) {
  const at::Tensor all = at::ones({elements});
  kept.push_back(all.slice(0, 0, 1));
  return all;
}

SCENARIO(same_host_allocator) {
  use_shared_allocator();
  use_shared_allocator();
  join_nearest(rank);
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  at::Tensor tensor = at::ones({kMany});
  REQUIRE_THAT(shared_bytes() == 1 << 20 && shared_loans() == 0);
  REQUIRE_THAT(rpc_sync<total>("worker1", tensor) == kMany);
  REQUIRE_THAT(eventually([] { return shared_bytes() == 1 << 20 && shared_loans() == 0; }));

  // A result that nobody else has lies where it was made; one that somebody has is copied.
  at::Tensor result = rpc_sync<ones>("worker1", kMany);
  REQUIRE_THAT(rpc_sync<shared_bytes_there>("worker1") == 1 << 20);
  result.add_(1);
  REQUIRE_THAT(result.equal(at::full({kMany}, 2.0)));
  result = rpc_sync<ones_that_stay>("worker1", kMany);
  REQUIRE_THAT(rpc_sync<shared_bytes_there>("worker1") == 2 << 20);
  result.add_(1);
  REQUIRE_THAT(rpc_sync<sum_of_kept>("worker1") == kMany);
  rpc_sync<drop_kept>("worker1");
  result = rpc_sync<view_of_ones>("worker1", kMany);
  result.add_(1);
  REQUIRE_THAT(rpc_sync<sum_of_kept>("worker1") == 1);
  rpc_sync<drop_kept>("worker1");
  result.reset();
  REQUIRE_THAT(rpc_sync<shared_bytes_there>("worker1") == 0);

  for (const auto& [misuse, says] : std::vector<std::pair<Ending, const char*>>{
           {ending_of([&] { rpc_sync<changing>("worker1", tensor); }), "has changed"},
           {ending_of([&] { rpc_sync<keeping>("worker1", tensor); }), "has kept"},
           {ending_of([&] { rpc_sync<keeping_a_part>("worker1", tensor); }), "has kept"},
           {ending_of([&] { rpc_sync<returning>("worker1", tensor); }), "returned"}}) {
    require_ending(misuse, {.code = ErrorCode::kRemoteError,
                            .may_have_run = true,
                            .within = 10s,
                            .names = {"worker1", says, "Borrowed"}});
  }
  rpc_sync<drop_kept>("worker1");
  tensor.reset();
  REQUIRE_THAT(eventually([] { return nothing_is_shared(); }));
  return end_scene();
}

TEST(SameHost, WhatLiesInSharedMemoryTravelsWithoutACopy) {
  Workers workers("same_host_allocator", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(same_host_borrowed_tcp) {
  use_shared_allocator();
  Options options;
  options.transport = Options::Transport::kTcp;
  init_rpc(worker(rank), options);
  if (rank != 0) return serve();
  REQUIRE_THAT(rpc_sync<total>("worker1", at::ones({kMany})) == kMany);
  REQUIRE_THAT(rpc_sync<total>("worker1", at::ones({4})) == 4);
  REQUIRE_THAT(ending_of([] { rpc_sync<keeping>("worker1", at::ones({4})); }).error->code() ==
               ErrorCode::kRemoteError);
  return end_scene();
}

TEST(SameHost, ABorrowedArgumentWorksTheSameOverTcp) {
  Workers workers("same_host_borrowed_tcp", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

}  // namespace
}  // namespace weft::test

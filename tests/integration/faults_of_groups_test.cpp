// Process groups and data parallel training between real processes, one of which is killed, freezes
// or does not come.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "collective/process_group_state.h"
#include "fault_scene.h"
#include "support/scenario.h"
#include "weft/nn.h"

namespace weft::test {
namespace {

constexpr int kSteps = 5;
const std::vector<std::string> kEverybody{"worker0", "worker1", "worker2"};
const std::vector<std::string> kSurvivors{"worker0", "worker1"};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = first->forward(x).relu();
    // Between the gradients of the second layer, which are being reduced, and those of the first.
    if (in_backward) hidden.register_hook([this](const at::Tensor&) { in_backward(); });
    return second->forward(hidden);
  }
  torch::nn::Linear first{64, 512}, second{512, 64};
  std::function<void()> in_backward;
};
using Net = nn::DistributedDataParallel<NetImpl>;

nn::DataParallelOptions small_buckets() {
  nn::DataParallelOptions options;
  options.first_bucket_bytes = 1024;
  options.bucket_bytes = 1024;
  return options;
}

void step_plainly(Net& net, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  net.forward(at::ones({4, 64}) * (get_worker_info().id + 1)).square().mean().backward();
  optimizer.step();
}

at::Tensor scaled(at::Tensor x) { return x * 2; }

void step_in_context(Net& net, torch::optim::Optimizer&) {
  autograd::Context context;
  const at::Tensor hidden = rpc_sync<scaled>("worker0", at::ones({4, 64}));
  context.backward({net.forward(hidden).square().mean()}, {.timeout = 60s});
}

using Step = void (*)(Net&, torch::optim::Optimizer&);

Ending train(const std::vector<std::string>& names, Step step,
             const std::function<void()>& at_end) {
  const ProcessGroup group = new_group(names);
  Net net(std::make_shared<NetImpl>(), group, small_buckets());
  torch::optim::SGD optimizer(net.parameters(), 0.01);
  for (int i = 0; i + 1 < kSteps; ++i) step(net, optimizer);
  net.module()->in_backward = at_end;
  return ending_of([&] { step(net, optimizer); });
}

// The last worker does `fault` in the middle of its last step.
int survive(int rank, Step step, const std::function<void()>& fault, ErrorCode code,
            milliseconds within) {
  init_rpc(worker(rank), impatient());
  const bool is_victim = rank == 2;
  // All are in the pass then: who is still before it would be told by its forward.
  const auto meet = [&] {
    barrier(kEverybody);
    if (is_victim) fault();
  };
  const Ending ending = train(kEverybody, step, meet);
  REQUIRE_THAT(!is_victim);
  std::printf("%.2f s: %s\n", std::chrono::duration<double>(ending.took).count(),
              ending.error ? ending.error->what() : "no error");
  REQUIRE_THAT(ending.error && ending.error->code() == code);
  REQUIRE_THAT(ending.error->message().find("worker2") != std::string::npos);
  REQUIRE_THAT(ending.took_at_most(within));
  // Those who are left go on.
  require_success(train(kSurvivors, step, {}), 10s);
  // Answers of its last step may still be on their way to the other.
  tell_test("survived");
  wait_for_test();
  shutdown(Shutdown::kNow);
  return 0;
}

void die() { raise(SIGKILL); }
void freeze_here() { raise(SIGSTOP); }

constexpr milliseconds kKilled = 1000ms;
constexpr milliseconds kFrozen = 600ms + kKilled;

SCENARIO(faults_member_is_killed) {
  return survive(rank, &step_plainly, &die, ErrorCode::kPeerLost, kKilled);
}
SCENARIO(faults_member_freezes) {
  return survive(rank, &step_plainly, &freeze_here, ErrorCode::kPeerLost, kFrozen);
}
SCENARIO(faults_member_is_killed_in_a_context) {
  return survive(rank, &step_in_context, &die, ErrorCode::kContextAborted, kKilled);
}
SCENARIO(faults_member_freezes_in_a_context) {
  return survive(rank, &step_in_context, &freeze_here, ErrorCode::kContextAborted, kFrozen);
}

class FaultsOfGroups : public testing::TestWithParam<const char*> {};

TEST_P(FaultsOfGroups, AMemberLostInMidStepEndsTheStepOfTheOthers) {
  Workers workers(GetParam(), 3);

  for (const int rank : {0, 1}) {
    EXPECT_TRUE(workers.heard(rank, "survived")) << workers.output(rank);
  }
  for (const int rank : {0, 1}) {
    workers.release(rank);
    EXPECT_EQ(workers.wait(rank), 0) << workers.output(rank);
    std::cout << workers.output(rank);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FaultsOfGroups,
                         testing::Values("faults_member_is_killed", "faults_member_freezes",
                                         "faults_member_is_killed_in_a_context",
                                         "faults_member_freezes_in_a_context"),
                         [](const auto& each) { return std::string(each.param); });

SCENARIO(faults_member_leaves_join) {
  init_rpc(worker(rank), impatient());
  Net net(std::make_shared<NetImpl>(), new_group(kEverybody), small_buckets());
  torch::optim::SGD optimizer(net.parameters(), 0.01);
  // The first has no batches and waits for the others; the last dies.
  const Ending ending = ending_of([&] {
    nn::join({&net}, [&] {
      for (int i = 0; i < rank * kSteps; ++i) {
        if (rank == 2 && i == rank * kSteps - 1) die();
        step_plainly(net, optimizer);
      }
    });
  });
  REQUIRE_THAT(ending.error && ending.error->code() == ErrorCode::kPeerLost);
  REQUIRE_THAT(ending.error->message().find("worker2") != std::string::npos);
  shutdown(Shutdown::kNow);
  return 0;
}

TEST(FaultsOfGroupsOnce, AMemberKilledWhileOthersHaveJoinedIsNoticed) {
  Workers workers("faults_member_leaves_join", 3);

  for (const int rank : {0, 1}) EXPECT_EQ(workers.wait(rank), 0) << workers.output(rank);
}

SCENARIO(faults_member_does_not_come) {
  init_rpc(worker(rank));
  if (rank == 1) {
    const ProcessGroup group = new_group(kSurvivors, {.timeout = 300ms * kSlowness});
    wait_for_test();
    // It is too late, once it is told so.
    REQUIRE_THAT(eventually([&] { return group.group()->channel().failure().has_value(); }));
    const Ending late = ending_of([&] { group.barrier(); });
    REQUIRE_THAT(late.error && late.error->code() == ErrorCode::kTimeout);
    shutdown();
    return 0;
  }
  const ProcessGroup group = new_group(kSurvivors, {.timeout = 300ms * kSlowness});
  const Ending ending = ending_of([&] { group.all_reduce(at::ones({10})); });
  REQUIRE_THAT(ending.error && ending.error->code() == ErrorCode::kTimeout);
  REQUIRE_THAT(ending.error->message().find("missing: worker1") != std::string::npos);
  tell_test("timed out");
  shutdown();
  return 0;
}

TEST(FaultsOfGroupsOnce, AMemberThatDoesNotComeIsNamed) {
  Workers workers("faults_member_does_not_come", 2);
  ASSERT_TRUE(workers.heard(0, "timed out")) << workers.output(0);
  workers.release(1);

  EXPECT_TRUE(workers.all_succeed());
}

// Worker0 has no connection to worker1 yet and cannot make one, for longer than a connection may
// take and shorter than what a frozen worker is given up after.
SCENARIO(faults_member_freezes_for_a_while) {
  init_rpc(worker(rank));
  const ProcessGroup group = new_group(kSurvivors, {.timeout = 60s});
  if (rank == 1) {
    tell_test("about to freeze");
    raise(SIGSTOP);
  } else {
    wait_for_test();
  }
  const at::Tensor sum = at::ones({1000});
  group.all_reduce(sum);
  REQUIRE_THAT(at::equal(sum, at::full({1000}, 2.f)));
  shutdown();
  return 0;
}

TEST(FaultsOfGroupsOnce, AMemberThatFreezesForAWhileIsWaitedFor) {
  Workers workers("faults_member_freezes_for_a_while", 2);
  ASSERT_TRUE(workers.heard(1, "about to freeze")) << workers.output(1);
  workers.release(0);
  std::this_thread::sleep_for(6500ms);

  workers.signal(1, SIGCONT);

  EXPECT_TRUE(workers.all_succeed());
}

// The connections of all members are cut in the middle of many operations: parts are sent again.
SCENARIO(faults_connections_of_members_break) {
  init_rpc(worker(rank));
  const ProcessGroup group = new_group(kEverybody);
  for (int i = 0; i < 200; ++i) {
    if (rank == 1 && i % 40 == 20) break_connections();
    const at::Tensor tensor = at::full({30'000}, rank + i);
    const Ending ending = ending_of([&] { group.all_reduce(tensor); });
    if (ending.error) std::printf("%d: %s\n", i, ending.error->what());
    REQUIRE_THAT(!ending.error);
    REQUIRE_THAT(tensor.eq(3 * i + 3).all().item<bool>());
  }
  shutdown();
  return 0;
}

TEST(FaultsOfGroupsOnce, OperationsOutliveBrokenConnections) {
  Workers workers("faults_connections_of_members_break", 3);

  EXPECT_TRUE(workers.all_succeed());
}

}  // namespace
}  // namespace weft::test

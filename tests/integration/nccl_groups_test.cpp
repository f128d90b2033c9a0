// Process groups whose tensors go from GPU to GPU by NCCL. One GPU is enough: every process says
// that it is on another host, so that NCCL takes theirs for different ones.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <stdlib.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "collective/process_group_state.h"
#include "fault_scene.h"
#include "support/scenario.h"
#include "weft/nn.h"

namespace weft::test::nccl_groups {
namespace {

using collective::Kind;

void claim_own_host(int rank) { setenv("NCCL_HOSTID", worker(rank).c_str(), 1); }

at::Tensor on_gpu(double value, at::IntArrayRef sizes = {1000}, at::ScalarType type = at::kFloat) {
  return at::full(sizes, value, at::TensorOptions().dtype(type).device(at::kCUDA));
}

bool is_full(const at::Tensor& tensor, double value) {
  return tensor.is_cuda() && tensor.cpu().to(at::kDouble).eq(value).all().item<bool>();
}

// Whether sums of this go by NCCL. All members ask.
bool is_direct(const ProcessGroup& group, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
  const auto dual = group.group()->dual(tensor);
  return dual.is_direct(Kind::kAllReduce, {tensor}, dual.channel()->everybody(), op);
}

// --- operations ------------------------------------------------------------------------------

void check_reductions(const ProcessGroup& group) {
  const int rank = group.rank();
  const double sum = 1 + 2 + 3;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt, at::kChar, at::kByte}) {
    const at::Tensor tensor = on_gpu(rank + 1, {33, 7}, type);
    REQUIRE_THAT(is_direct(group, tensor));
    group.all_reduce(tensor);
    REQUIRE_THAT(is_full(tensor, sum));
  }
  // What NCCL does not do, or not in our way, goes through the CPU.
  const at::Tensor product = on_gpu(rank + 1);
  REQUIRE_THAT(!is_direct(group, product, ReduceOp::kProduct));
  group.all_reduce(product, ReduceOp::kProduct);
  REQUIRE_THAT(is_full(product, 6));
  const at::Tensor shorts = on_gpu(rank + 1, {10}, at::kShort);
  group.all_reduce(shorts);
  REQUIRE_THAT(is_full(shorts, sum));

  const at::Tensor average = on_gpu(rank + 1, {40, 50}).t();
  group.all_reduce(average, ReduceOp::kAverage);
  REQUIRE_THAT(is_full(average, 2));
  const at::Tensor every_second = on_gpu(rank + 1, {40, 50});
  group.all_reduce(every_second.slice(1, 0, 50, 2));
  REQUIRE_THAT(is_full(every_second.slice(1, 0, 50, 2), sum));
  REQUIRE_THAT(is_full(every_second.slice(1, 1, 50, 2), rank + 1));
  group.all_reduce(at::empty({0}, at::TensorOptions().device(at::kCUDA)));
}

void check_copies(const ProcessGroup& group) {
  const int rank = group.rank();
  for (const at::ScalarType type : {at::kFloat, at::kBool, at::kComplexFloat, at::kShort}) {
    const at::Tensor tensor = on_gpu(rank == 1 ? 1 : 0, {9, 4}, type).t();
    group.broadcast(tensor, 1);
    REQUIRE_THAT(tensor.is_cuda() && at::equal(tensor.cpu(), at::ones({4, 9}, type)));
  }
  // Each of another shape and another type.
  const at::Tensor own = on_gpu(rank, {rank + 1, 5}, rank == 2 ? at::kDouble : at::kFloat);
  const auto all = group.all_gather(own);
  REQUIRE_THAT(all.size() == 3);
  for (int64_t i = 0; i < 3; ++i) {
    const at::Tensor& each = all[static_cast<size_t>(i)];
    REQUIRE_THAT(each.sizes() == at::IntArrayRef({i + 1, 5}) && is_full(each, i));
    REQUIRE_THAT(each.scalar_type() == (i == 2 ? at::kDouble : at::kFloat));
  }
  REQUIRE_THAT(all[static_cast<size_t>(rank)].data_ptr() != own.data_ptr());

  const std::vector<at::Tensor> given{on_gpu(1, {3, 3}), on_gpu(2, {4}), on_gpu(3, {})};
  const at::Tensor scattered = group.reduce_scatter(given, ReduceOp::kAverage);
  REQUIRE_THAT(is_full(scattered, rank + 1));
  REQUIRE_THAT(scattered.sizes() == given[static_cast<size_t>(rank)].sizes());
  for (int i = 0; i < 3; ++i) REQUIRE_THAT(is_full(given[static_cast<size_t>(i)], i + 1));
}

// What was queued on the GPU before is waited for, and some of them go through the CPU.
void check_many_at_once(const ProcessGroup& group) {
  std::vector<at::Tensor> tensors;
  std::vector<Future<void>> reductions;
  for (int i = 0; i < 100; ++i) {
    at::Tensor tensor = on_gpu(0, {200'000});
    for (int k = 0; k < 10; ++k) tensor.add_(i * 0.1);
    tensors.push_back(i % 10 == 3 ? tensor.cpu() : tensor);
    reductions.push_back(group.all_reduce_async(tensors.back()));
  }
  for (int i = 0; i < 100; ++i) {
    reductions[static_cast<size_t>(i)].wait();
    const at::Tensor error = tensors[static_cast<size_t>(i)].sub(3.0 * i).abs().max();
    REQUIRE_THAT(error.item<double>() < 1e-2);
  }
}

SCENARIO(nccl_operations) {
  claim_own_host(rank);
  init_rpc(worker(rank));
  const ProcessGroup group = new_group();
  check_reductions(group);
  check_copies(group);
  check_many_at_once(group);
  group.barrier();
  shutdown();
  return 0;
}

// --- training --------------------------------------------------------------------------------

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
    statistics = register_buffer("statistics", at::zeros({3}));
  }
  at::Tensor forward(const at::Tensor& x, bool all) {
    const at::Tensor hidden = second(first(x).relu()).relu();
    return all ? third(hidden) : hidden;
  }
  torch::nn::Linear first{20, 300}, second{300, 300}, third{300, 300};
  at::Tensor statistics;
};

std::shared_ptr<NetImpl> make_net(uint64_t seed) {
  torch::manual_seed(seed);
  auto net = std::make_shared<NetImpl>();
  net->to(at::kCUDA);
  return net;
}

at::Tensor batch(int rank) {
  return (at::arange(100, at::kFloat).view({5, 20}) * 0.01 + 0.3 * rank).cuda();
}

std::vector<at::Tensor> grads_of(NetImpl& net) {
  std::vector<at::Tensor> grads;
  for (const at::Tensor& each : net.parameters()) grads.push_back(each.grad());
  return grads;
}

std::vector<at::Tensor> grads_in(const autograd::Context& context, NetImpl& net) {
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : net.parameters()) {
    for (const auto& [of, gradient] : context.gradients()) {
      if (of.is_same(parameter)) grads.push_back(gradient);
    }
  }
  return grads;
}

// Of one process, over the batches of all.
std::vector<at::Tensor> expected(int members, const std::function<bool(int)>& uses_all) {
  const auto net = make_net(0);
  for (int rank = 0; rank < members; ++rank) {
    net->forward(batch(rank), uses_all(rank)).square().mean().div(members).backward();
  }
  return grads_of(*net);
}

void require_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted) {
  REQUIRE_THAT(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    REQUIRE_THAT(got[i].defined() == wanted[i].defined());
    if (!got[i].defined()) continue;
    REQUIRE_THAT(got[i].is_cuda());
    REQUIRE_THAT((got[i] - wanted[i]).abs().max().item<double>() < 1e-5);
  }
}

using Net = nn::DistributedDataParallel<NetImpl>;

// The first says which values they begin with; the buckets are small, so that there are several.
Net make_replica(const ProcessGroup& group, bool find_unused) {
  nn::DataParallelOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 100'000;
  options.find_unused_parameters = find_unused;
  return Net(make_net(static_cast<uint64_t>(group.rank())), group, options);
}

SCENARIO(nccl_training) {
  claim_own_host(rank);
  init_rpc(worker(rank));
  const ProcessGroup group = new_group();
  {
    const auto everything = [](int) { return true; };
    Net net = make_replica(group, false);
    for (int i = 0; i < 3; ++i) {
      net.module()->zero_grad();
      net.forward(batch(rank), true).square().mean().backward();
      require_close(grads_of(*net.module()), expected(group.size(), everything));
    }
    autograd::Context context;
    context.backward({net.forward(batch(rank), true).square().mean()});
    require_close(grads_in(context, *net.module()), expected(group.size(), everything));
    group.barrier();
  }
  {
    const auto first_only = [](int member) { return member == 0; };
    Net net = make_replica(group, true);
    net.forward(batch(rank), rank == 0).square().mean().backward();
    require_close(grads_of(*net.module()), expected(group.size(), first_only));
    group.barrier();
  }
  shutdown();
  return 0;
}

// --- what goes wrong -------------------------------------------------------------------------

// The last worker does `fault` while NCCL is at work.
int survive_nccl(int rank, const std::function<void()>& fault, milliseconds within) {
  claim_own_host(rank);
  init_rpc(worker(rank), impatient());
  const ProcessGroup group = new_group();
  std::vector<at::Tensor> tensors;
  std::vector<Future<void>> reductions;
  for (int i = 0; i < 20; ++i) tensors.push_back(on_gpu(1, {16 << 20}));
  group.all_reduce(tensors.front());
  for (const at::Tensor& each : tensors) reductions.push_back(group.all_reduce_async(each));
  reductions[2].wait();
  if (rank == 2) fault();
  REQUIRE_THAT(rank != 2);
  const Ending ending = ending_of([&] { wait_all(reductions); });
  std::printf("%.2f s: %s\n", std::chrono::duration<double>(ending.took).count(),
              ending.error ? ending.error->what() : "no error");
  REQUIRE_THAT(ending.error && ending.error->code() == ErrorCode::kPeerLost);
  REQUIRE_THAT(ending.error->message().find("worker2") != std::string::npos);
  REQUIRE_THAT(ending.took_at_most(within));
  // The GPU is not blocked, and those who are left can go on.
  REQUIRE_THAT(is_full(on_gpu(1) + 1, 2));
  const ProcessGroup rest = new_group({worker(0), worker(1)});
  const at::Tensor tensor = on_gpu(1);
  rest.all_reduce(tensor);
  REQUIRE_THAT(is_direct(rest, tensor) && is_full(tensor, 2));
  tell_test("survived");
  wait_for_test();
  shutdown(Shutdown::kNow);
  return 0;
}

SCENARIO(nccl_member_is_killed) {
  return survive_nccl(
      rank, [] { raise(SIGKILL); }, 3000ms);
}
SCENARIO(nccl_member_freezes) {
  return survive_nccl(
      rank, [] { raise(SIGSTOP); }, 4000ms);
}

// One has its tensor on the CPU.
SCENARIO(nccl_members_disagree) {
  claim_own_host(rank);
  init_rpc(worker(rank));
  const ProcessGroup group = new_group();
  const auto tensor = [&](int of) { return rank == of ? at::ones({10}) : on_gpu(1); };
  group.all_reduce(on_gpu(1, {10}));
  const Ending ending = ending_of([&] { group.all_reduce(tensor(1)); });
  REQUIRE_THAT(ending.error && ending.error->code() == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(ending.error->message().find("on accelerators") != std::string::npos);

  const ProcessGroup anywhere = new_group({}, {.nccl = false});
  const at::Tensor mine = rank == 1 ? at::ones({10}) : on_gpu(1, {10});
  REQUIRE_THAT(!is_direct(anywhere, mine));
  anywhere.all_reduce(mine);
  REQUIRE_THAT(mine.cpu().eq(2).all().item<bool>());
  shutdown();
  return 0;
}

// NCCL would refuse them.
SCENARIO(nccl_members_share_a_gpu) {
  init_rpc(worker(rank));
  const ProcessGroup group = new_group();
  const at::Tensor tensor = on_gpu(rank);
  REQUIRE_THAT(!is_direct(group, tensor));
  group.all_reduce(tensor);
  REQUIRE_THAT(is_full(tensor, 1));
  Net net = make_replica(group, false);
  net.forward(batch(rank), true).square().mean().backward();
  require_close(grads_of(*net.module()), expected(2, [](int) { return true; }));
  group.barrier();
  shutdown();
  return 0;
}

class NcclGroups : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
  static constexpr auto kBound = std::chrono::seconds(150);
};

TEST_F(NcclGroups, OperationsGiveWhatTheyGiveOnTheCpu) {
  EXPECT_TRUE(Workers("nccl_operations", 3).all_succeed(kBound));
}

TEST_F(NcclGroups, TrainingEqualsOneProcess) {
  EXPECT_TRUE(Workers("nccl_training", 2).all_succeed(kBound));
}

TEST_F(NcclGroups, MembersThatDisagreeAreTold) {
  EXPECT_TRUE(Workers("nccl_members_disagree", 2).all_succeed(kBound));
}

TEST_F(NcclGroups, MembersThatShareAGpuGoThroughTheCpu) {
  EXPECT_TRUE(Workers("nccl_members_share_a_gpu", 2).all_succeed(kBound));
}

class FaultsOfNcclGroups : public NcclGroups, public testing::WithParamInterface<const char*> {};

TEST_P(FaultsOfNcclGroups, AMemberLostInMidOperationEndsItForTheOthers) {
  Workers workers(GetParam(), 3);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(workers.heard(rank, "survived", kBound)) << workers.output(rank);
  }
  for (const int rank : {0, 1}) {
    workers.release(rank);
    EXPECT_EQ(workers.wait(rank, kBound), 0) << workers.output(rank);
    std::printf("%s", workers.output(rank).c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(All, FaultsOfNcclGroups,
                         testing::Values("nccl_member_is_killed", "nccl_member_freezes"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace weft::test::nccl_groups

// Replicas on an accelerator.
// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>

#include "data_parallel_scene.h"

namespace weft::data_parallel {
namespace {

class DataParallelAccelerator : public Scene {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
};

using Replica = DistributedDataParallel<NetImpl>;

at::Tensor loss_there(Replica& net, int64_t rank) {
  return distance(net.forward(input(rank, 0).cuda()), target(rank, 0).cuda());
}

Tensors expected_grads(const NetImpl& net, int64_t members) {
  return mean_grads(net, members,
                    [](auto& alone, int64_t rank) { return net_loss(alone, rank, 0); });
}

Tensors brought_here(const Tensors& there) {
  Tensors here;
  for (const at::Tensor& each : there) {
    EXPECT_TRUE(each.is_cuda());
    here.push_back(each.cpu());
  }
  return here;
}

TEST_F(DataParallelAccelerator, GradientsInAContextAreThoseOfOneProcess) {
  const NetImpl net;
  on_members(2, [&](const Member& member) {
    auto there = copy_of(net);
    there->to(at::kCUDA);
    Replica replica(there, member.group);
    Context context(member.agent);
    context.backward({loss_there(replica, member.rank)});
    expect_same(brought_here(grads(*there, context)), expected_grads(net, 2));
  });
}

// Torch's engine has one thread for an accelerator in a process, and what ends a pass runs on it:
// two members in one process would wait for each other.
TEST_F(DataParallelAccelerator, BackwardReducesThere) {
  const NetImpl net;
  on_members(1, [&](const Member& member) {
    auto there = copy_of(net);
    there->to(at::kCUDA);
    Replica replica(there, member.group);
    loss_there(replica, member.rank).backward();
    expect_same(brought_here(grads(*there)), expected_grads(net, 1));
  });
}

TEST_F(DataParallelAccelerator, GroupsTakeTensorsThere) {
  on_members(3, [&](const Member& member) {
    const at::Tensor tensor = at::full({5, 7}, member.rank, at::kFloat).cuda().t();
    member.group.all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor.cpu(), at::full({7, 5}, 3, at::kFloat)));
    const at::Tensor other = at::full({3}, member.rank, at::kFloat).cuda();
    EXPECT_TRUE(member.group.all_gather(other).at(2).is_cuda());
    member.group.broadcast(other, 1);
    EXPECT_TRUE(at::equal(other.cpu(), at::ones({3})));
    const at::Tensor sum = member.group.reduce_scatter({other, other * 2, other * 3});
    EXPECT_TRUE(at::equal(sum.cpu(), at::full({3}, 3.0 * static_cast<double>(member.rank + 1))));
  });
}

}  // namespace
}  // namespace weft::data_parallel

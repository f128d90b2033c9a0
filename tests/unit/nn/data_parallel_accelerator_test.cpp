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

at::Tensor loss_there(nn::DistributedDataParallel<NetImpl>& net, int64_t rank, int64_t step) {
  return distance(net.forward(input(rank, step).cuda()), target(rank, step).cuda());
}

TEST_F(DataParallelAccelerator, GradientsAreThoseOfOneProcess) {
  const NetImpl net;
  const Tensors expected =
      mean_grads(net, 2, [](auto& alone, int64_t rank) { return net_loss(alone, rank, 0); });

  on_members(2, [&](const Member& member) {
    auto there = copy_of(net);
    there->to(at::kCUDA);
    DistributedDataParallel<NetImpl> replica(there, member.group);
    loss_there(replica, member.rank, 0).backward();
    Tensors plain;
    for (const at::Tensor& each : grads(*there)) plain.push_back(each.cpu());
    expect_same(plain, expected, "backward()");

    Context context(member.agent);
    context.backward({loss_there(replica, member.rank, 0)});
    Tensors in_context;
    for (const at::Tensor& each : grads(*there, context)) {
      EXPECT_TRUE(each.is_cuda());
      in_context.push_back(each.cpu());
    }
    expect_same(in_context, expected, "in a context");
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

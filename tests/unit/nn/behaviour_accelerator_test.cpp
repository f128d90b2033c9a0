// Behaviour 39 on an accelerator: a module in its memory is trained, saved and moved like any
// other.
// SPDX-License-Identifier: BSD-3-Clause
#include <memory>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "base/temporary_directory.h"
#include "support/loopback_group.h"
#include "weft/checkpoint.h"

namespace weft::behaviour_nn {
namespace {

using Linear = nn::RemoteModule<torch::nn::LinearImpl>;
using Adam = optim::DistributedOptimizer<torch::optim::Adam>;

class Behaviour39_Accelerator : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    group = std::make_unique<test::LoopbackGroup>(std::vector<std::string>{"a", "b"});
  }
  void step(const Linear& module, Adam& optimizer, double input) {
    autograd::Context context((*group)[0]);
    context.backward({module.forward(at::ones({2, 4}) * input).pow(2).sum()});
    optimizer.clip_grad_norm(context, 1.0);
    optimizer.step(context);
  }
  std::unique_ptr<test::LoopbackGroup> group;
};

TEST_F(Behaviour39_Accelerator, AModuleThereTrainsAndIsSaved) {
  Agent& a = (*group)[0];
  Linear there(a, "b/cuda:0", 4, 3), here(a, "b", 4, 3);
  here.load_state(there.state());
  Adam of_there(a, there.remote_parameters(), 0.1), of_here(a, here.remote_parameters(), 0.1);
  for (int i = 1; i < 6; ++i) {
    step(there, of_there, i);
    step(here, of_here, i);
  }
  EXPECT_TRUE(at::allclose(there.state().at("weight"), here.state().at("weight"), 1e-4, 1e-5));

  of_there.load_state(of_there.state());
  const base::TemporaryDirectory directory("weft-accelerator");
  checkpoint::Checkpoint checkpoint(a, directory.path());
  checkpoint.add("module", there);
  checkpoint.add("optimizer", of_there);
  checkpoint.save();
  step(there, of_there, 7);
  const at::Tensor once = there.state().at("weight");
  checkpoint.load();
  step(there, of_there, 7);
  EXPECT_TRUE(at::allclose(there.state().at("weight"), once));

  there.to("cpu");
  EXPECT_EQ(there.forward(at::ones({1, 4})).sizes(), at::IntArrayRef({1, 3}));
}

TEST_F(Behaviour39_Accelerator, NestedArgumentsAndResultsAreMoved) {
  const nn::RemoteModule<torch::nn::LSTMImpl> lstm((*group)[0], "b/cuda:0",
                                                   torch::nn::LSTMOptions(4, 5));

  const auto first = lstm.forward(at::ones({2, 1, 4}));
  const auto second = lstm.forward(at::ones({2, 1, 4}), std::get<1>(first));

  EXPECT_TRUE(std::get<0>(second).is_cpu());
  EXPECT_TRUE(std::get<0>(std::get<1>(second)).is_cpu());
}

}  // namespace
}  // namespace weft::behaviour_nn

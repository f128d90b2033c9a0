// Behaviour 39: modules on other workers.
// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "support/loopback_group.h"
#include "weft/nn.h"
#include "weft/optim.h"

namespace weft::behaviour_nn {
namespace {

using autograd::Context;
using nn::RemoteModule;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;

auto fails_with(ErrorCode code, const std::string& text) {
  return Throws<Error>(
      AllOf(Property(&Error::code, code), Property(&Error::message, HasSubstr(text))));
}

/// Two layers, a buffer, and everything a forward may look like.
struct MixtureImpl : torch::nn::Module {
  MixtureImpl(int64_t in, std::string label, double scale = 1)
      : label_(std::move(label)),
        first(register_module("first", torch::nn::Linear(in, 3))),
        second(register_module("second", torch::nn::Linear(3, 2))),
        scale(register_buffer("scale", at::full({}, scale))) {
    if (in == 13) throw std::invalid_argument("13 is no width");
  }
  at::Tensor forward(at::Tensor x, bool twice = false) {
    const at::Tensor y = second(at::relu(first(x))) * scale;
    return twice ? y * 2 : y;
  }
  std::tuple<at::Tensor, std::string> forward(std::string prefix) {
    return {scale.clone(), prefix + label_};
  }
  bool is_shared() { return shared_from_this() != nullptr; }
  std::string label_;
  torch::nn::Linear first, second;
  at::Tensor scale;
};
bool is_shared(MixtureImpl& module) { return module.is_shared(); }
at::Tensor weight_of(MixtureImpl& module) { return module.first->weight; }

at::Tensor forward_of(RemoteModule<MixtureImpl> module, at::Tensor x) { return module.forward(x); }

class Behaviour39_RemoteModule : public testing::Test {
 protected:
  test::LoopbackGroup group{{"a", "b", "c"}};
  Agent& a = group[0];
  const at::Tensor x = at::arange(8, at::kFloat).reshape({2, 4});
  RemoteModule<MixtureImpl> module{a, "b", 4, "label", 2.0};
  MixtureImpl& itself() {
    // All workers of this test live in this process.
    return *reinterpret_cast<MixtureImpl*>(a.sync<address_of>("b", module));
  }
  static uint64_t address_of(RemoteModule<MixtureImpl> module) {
    return reinterpret_cast<uint64_t>(&module.module_rref().local_value());
  }
};

TEST_F(Behaviour39_RemoteModule, ForwardsThereSynchronouslyOrNot) {
  const at::Tensor expected = itself().forward(x).detach();

  EXPECT_TRUE(at::equal(module.forward(x), expected));
  EXPECT_TRUE(at::equal(module.forward_async(x).wait(), expected));
  EXPECT_TRUE(at::equal(module.forward_remote(x).to_here(), expected));
  EXPECT_EQ(module.owner().name, "b");
}

TEST_F(Behaviour39_RemoteModule, DefaultArgumentsAndOverloadsWork) {
  EXPECT_TRUE(at::equal(module.forward(x, true), module.forward(x) * 2));
  EXPECT_EQ(std::get<1>(module.forward("the ")), "the label");
}

TEST_F(Behaviour39_RemoteModule, ItsReferenceCallsAnyMethod) {
  EXPECT_TRUE(module.module_rref().rpc_sync<&is_shared>());
  EXPECT_EQ(module.module_rref().rpc_sync<&weight_of>().sizes(), at::IntArrayRef({3, 4}));
}

TEST_F(Behaviour39_RemoteModule, ParametersAndBuffersAreReferences) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : module.named_parameters()) {
    names.push_back(name);
    EXPECT_EQ(parameter.owner().name, "b");
  }

  EXPECT_THAT(names, ElementsAre("first.weight", "first.bias", "second.weight", "second.bias"));
  EXPECT_EQ(module.remote_parameters().size(), 4u);
  EXPECT_EQ(module.remote_parameters(/*recurse=*/false).size(), 0u);
  EXPECT_TRUE(at::equal(module.remote_parameters()[0].to_here(), itself().first->weight));
  ASSERT_EQ(module.named_buffers().size(), 1u);
  EXPECT_EQ(module.named_buffers()[0].first, "scale");
  EXPECT_EQ(module.buffers()[0].to_here().item<float>(), 2);
}

TEST_F(Behaviour39_RemoteModule, TrainAndEvalDoWhatTheySay) {
  EXPECT_TRUE(module.is_training());
  module.eval();
  EXPECT_FALSE(itself().second->is_training());
  module.train();
  EXPECT_TRUE(module.is_training());
  module.train(false);
  EXPECT_FALSE(module.is_training());
}

TEST_F(Behaviour39_RemoteModule, GradsAreZeroedThere) {
  itself().first->weight.mutable_grad() = at::ones({3, 4});

  module.zero_grad();

  const at::Tensor grad = itself().first->weight.grad();
  EXPECT_TRUE(!grad.defined() || grad.sum().item<float>() == 0);
}

TEST_F(Behaviour39_RemoteModule, IsSharedWithAThirdWorker) {
  const at::Tensor expected = module.forward(x);

  EXPECT_TRUE(at::equal(a.sync<forward_of>("c", module, x), expected));
  EXPECT_TRUE(at::equal(a.sync<forward_of>("b", module, x), expected));
}

TEST_F(Behaviour39_RemoteModule, OneThatIsThereAlreadyCanBeUsed) {
  const RRef<MixtureImpl> there = remote<MixtureImpl>(a, "c", 4, "own");
  const RemoteModule<MixtureImpl> wrapped(there);

  EXPECT_EQ(std::get<1>(wrapped.forward("my ")), "my own");
  EXPECT_EQ(wrapped.remote_parameters().size(), 4u);
}

TEST_F(Behaviour39_RemoteModule, StateIsCopiedAndPutBack) {
  RemoteModule<MixtureImpl> other(a, "c", 4, "other", 5.0);
  ASSERT_FALSE(at::equal(other.forward(x), module.forward(x)));

  other.load_state(module.state());

  EXPECT_TRUE(at::equal(other.forward(x), module.forward(x)));
  const nn::ModuleState state = module.state();
  EXPECT_EQ(state.size(), 5u);
  EXPECT_FALSE(state.at("first.weight").requires_grad());
}

TEST_F(Behaviour39_RemoteModule, AStateThatDoesNotFitChangesNothing) {
  nn::ModuleState state = module.state();
  const at::Tensor before = module.forward(x);
  state.at("first.weight") = at::zeros({3, 5});
  state.at("second.weight") = at::zeros({2, 3}, at::kDouble);
  state.erase("scale");
  state["third"] = at::zeros({1});

  EXPECT_THAT([&] { module.load_state(state); },
              Throws<Error>(AllOf(
                  Property(&Error::code, ErrorCode::kInvalidArgument),
                  Property(&Error::message, AllOf(HasSubstr("b: "), HasSubstr("scale is missing"),
                                                  HasSubstr("[3, 5]"), HasSubstr("Double"),
                                                  HasSubstr("no third"))))));
  EXPECT_TRUE(at::equal(module.forward(x), before));
}

TEST_F(Behaviour39_RemoteModule, AConstructorThatThrowsIsReportedByEveryUse) {
  const RemoteModule<MixtureImpl> bad(a, "b", 13, "bad");

  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { bad.forward(x); }, fails_with(ErrorCode::kRemoteError, "13 is no width"));
    EXPECT_THAT([&] { bad.remote_parameters(); },
                fails_with(ErrorCode::kRemoteError, "13 is no width"));
  }
}

TEST_F(Behaviour39_RemoteModule, AForwardThatThrowsIsReportedOnce) {
  EXPECT_THAT(
      [&] {
        module.forward(at::ones({2, 5}));
      },
      Throws<Error>(Property(&Error::code, ErrorCode::kRemoteError)));

  EXPECT_EQ(module.forward(x).sizes(), at::IntArrayRef({2, 2}));
}

TEST_F(Behaviour39_RemoteModule, PlacementsAreRead) {
  EXPECT_EQ(RemoteModule<MixtureImpl>(a, "rank:2", 4, "x").owner().name, "c");
  EXPECT_EQ(RemoteModule<MixtureImpl>(a, "c/cpu", 4, "x").owner().name, "c");
  EXPECT_EQ(RemoteModule<MixtureImpl>(a, "rank:2/cpu", 4, "x").owner().name, "c");
  EXPECT_EQ(nn::Placement("c/cuda:1").device(), "cuda:1");
  for (const std::string bad :
       {"", "/cpu", "b/", "b/gpu", "b/cpu/cpu", "rank:", "rank:x", "rank:-1"})
    EXPECT_THAT([&] { nn::Placement{bad}; }, fails_with(ErrorCode::kInvalidArgument, bad)) << bad;
  EXPECT_THAT([&] { RemoteModule<MixtureImpl>(a, "nobody", 4, "x"); },
              fails_with(ErrorCode::kInvalidArgument, "nobody"));
  EXPECT_THAT([&] { RemoteModule<MixtureImpl>(a, "rank:7", 4, "x"); },
              fails_with(ErrorCode::kInvalidArgument, "7"));
}

TEST_F(Behaviour39_RemoteModule, GradientsReachItsParametersAndAnOptimizerMovesThem) {
  optim::DistributedOptimizer<torch::optim::SGD> optimizer(a, module.remote_parameters(),
                                                           torch::optim::SGDOptions(0.1));
  const at::Tensor before = itself().second->bias.detach().clone();
  {
    Context context(a);
    context.backward({module.forward(x).sum()});
    optimizer.step(context);
  }

  EXPECT_TRUE(at::allclose(itself().second->bias, before - 0.1 * 2 * 2));  // 2 rows, scale 2
}

TEST_F(Behaviour39_RemoteModule, QuestionsAboutItAreNoPartOfAContext) {
  Context context(a);
  module.state();
  module.remote_parameters();
  module.train();

  EXPECT_EQ(autograd::census(group[1]).contexts, 0u);
}

TEST_F(Behaviour39_RemoteModule, ModulesOfLibtorchAreMadeFromTheirOptions) {
  RemoteModule<torch::nn::EmbeddingBagImpl> bag(
      a, "b", torch::nn::EmbeddingBagOptions(10, 3).mode(torch::kSum));
  EXPECT_EQ(bag.forward(at::arange(6), at::arange(2) * 3).sizes(), at::IntArrayRef({2, 3}));

  RemoteModule<torch::nn::LinearImpl> linear(a, "c", 4, 2);
  EXPECT_EQ(linear.forward(x).sizes(), at::IntArrayRef({2, 2}));
  RemoteModule<torch::nn::BatchNorm1dImpl> norm(a, "c", torch::nn::BatchNorm1dOptions(4));
  EXPECT_EQ(norm.buffers().size(), 3u);

  RemoteModule<torch::nn::LSTMImpl> lstm(a, "b", torch::nn::LSTMOptions(4, 5).num_layers(2));
  const auto [output, hidden] = lstm.forward(x.unsqueeze(0));
  EXPECT_EQ(output.sizes(), at::IntArrayRef({1, 2, 5}));
  const auto again = lstm.forward(x.unsqueeze(0), hidden);
  EXPECT_EQ(std::get<0>(again).sizes(), at::IntArrayRef({1, 2, 5}));
}

TEST_F(Behaviour39_RemoteModule, OnesOwnModuleGivesReferencesToItsParameters) {
  const torch::nn::Linear linear(2, 3);

  const auto references = nn::parameter_rrefs(a, *linear);

  ASSERT_EQ(references.size(), 2u);
  EXPECT_TRUE(references[0].local_value().is_same(linear->weight));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : first(register_module("first", torch::nn::Linear(2, 2))),
        second(register_module("second", torch::nn::Linear(2, 2))) {
    second->weight = second->register_parameter("tied", first->weight);
  }
  void forward() {}
  torch::nn::Linear first, second;
};
TEST_F(Behaviour39_RemoteModule, AParameterThatLayersShareComesOnce) {
  const RemoteModule<TiedImpl> tied(a, "b");

  EXPECT_EQ(tied.named_parameters().size(), 5u);
  EXPECT_EQ(tied.remote_parameters().size(), 4u);
  tied.forward();
}

struct SlowToFailImpl : torch::nn::Module {
  SlowToFailImpl() {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw std::runtime_error("no weights today");
  }
  at::Tensor forward(at::Tensor x) { return x; }
};
TEST_F(Behaviour39_RemoteModule, AConstructorThatThrowsLateIsReportedWithItsCause) {
  const RemoteModule<SlowToFailImpl> slow(a, "b");

  EXPECT_THAT([&] { slow.remote_parameters(); },
              fails_with(ErrorCode::kRemoteError, "no weights today"));
}

TEST_F(Behaviour39_RemoteModule, NestedTensorsAreMovedToItsDevice) {
  std::tuple<int, std::optional<std::pair<at::Tensor, at::Tensor>>,
             std::vector<std::tuple<at::Tensor>>>
      values{1, std::pair(at::ones(1), at::ones(2)), {std::tuple(at::ones(3))}};

  nn::detail::move_tensors(values, at::Device(at::kMeta));

  EXPECT_TRUE(std::get<1>(values)->first.is_meta());
  EXPECT_TRUE(std::get<0>(std::get<2>(values)[0]).is_meta());
}

TEST_F(Behaviour39_RemoteModule, MovesToAnotherDeviceOrSaysWhyNot) {
  module.to("cpu");

  EXPECT_THAT([&] { module.to("elsewhere"); },
              fails_with(ErrorCode::kInvalidArgument, "elsewhere"));
  EXPECT_EQ(module.forward(x).sizes(), at::IntArrayRef({2, 2}));
}

}  // namespace
}  // namespace weft::behaviour_nn

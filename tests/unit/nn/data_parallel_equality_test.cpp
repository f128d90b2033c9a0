// Behaviour 40: several members, each with a part of the batch, learn what one process learns.
// SPDX-License-Identifier: BSD-3-Clause
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adam.h>

#include "data_parallel_scene.h"
#include "weft/optim.h"

namespace weft::data_parallel {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

// Optimized where they lie, by gradients in .grad or taken from a context; or by a
// DistributedOptimizer.
enum class Rule { kSgd, kAdam };

struct Training {
  size_t members = 2;
  int64_t steps = 4;
  Way way = Way::kPlain;
  Rule rule = Rule::kSgd;
  DataParallelOptions options = {};
};

std::unique_ptr<torch::optim::Optimizer> optimizer_of(Rule rule, const Tensors& parameters) {
  if (rule == Rule::kAdam) return std::make_unique<Adam>(parameters, AdamOptions(0.05));
  return std::make_unique<SGD>(parameters, SGDOptions(0.05));
}
std::unique_ptr<optim::AnyDistributedOptimizer> distributed_of(Rule rule, const Member& member,
                                                               const torch::nn::Module& module) {
  const auto parameters = nn::parameter_rrefs(member.agent, module);
  if (rule == Rule::kAdam) {
    return std::make_unique<optim::DistributedOptimizer<Adam>>(member.agent, parameters,
                                                               AdamOptions(0.05));
  }
  return std::make_unique<optim::DistributedOptimizer<SGD>>(member.agent, parameters,
                                                            SGDOptions(0.05));
}

/// One member's training, in whichever way.
template <typename Loss>
void train(const Training& training, const Member& member, torch::nn::Module& module,
           const Loss& loss) {
  auto here = optimizer_of(training.rule, module.parameters());
  std::unique_ptr<optim::AnyDistributedOptimizer> distributed;
  if (training.way == Way::kDistributed) {
    distributed = distributed_of(training.rule, member, module);
  }
  for (int64_t step = 0; step < training.steps; ++step) {
    forget_grads(module);
    if (training.way == Way::kPlain) {
      loss(step).backward();
      here->step();
      continue;
    }
    Context context(member.agent);
    context.backward({loss(step)});
    for (const at::Tensor& each : grads(module)) EXPECT_FALSE(each.defined());
    if (distributed) {
      distributed->step(context);
    } else {
      for (at::Tensor& each : module.parameters()) each.mutable_grad() = context.gradient(each);
      here->step();
    }
  }
}

class DataParallelEquality : public Scene {
 protected:
  /// `loss(net, rank, step)` of the members, and `whole(net, step)` of one process.
  template <typename M, typename Loss, typename Whole>
  void expect_equal_to_one(const Training& training, const Loss& loss, const Whole& whole) {
    auto alone = std::make_shared<M>();
    std::vector<Tensors> learned(training.members);
    on_members(training.members, [&](const Member& member) {
      // What the others bring is random.
      auto module = member.rank == 0 ? copy_of(*alone) : std::make_shared<M>();
      DistributedDataParallel<M> net(module, member.group, training.options);
      member.group.barrier();
      train(training, member, *module, [&](int64_t step) { return loss(net, member.rank, step); });
      learned[static_cast<size_t>(member.rank)] = values(*module);
    });
    const Tensors before = values(*alone);

    auto optimizer = optimizer_of(training.rule, alone->parameters());
    for (int64_t step = 0; step < training.steps; ++step) {
      forget_grads(*alone);
      whole(*alone, step).backward();
      optimizer->step();
    }

    expect_alike(learned);
    expect_same(learned[0], values(*alone));
    EXPECT_FALSE(at::equal(before[0], values(*alone)[0])) << "nothing was learned";
  }
  template <typename M, typename Loss>
  void expect_equal_to_one(const Training& training, const Loss& loss) {
    const auto members = static_cast<int64_t>(training.members);
    expect_equal_to_one<M>(training, loss, [&](M& net, int64_t step) {
      at::Tensor sum = loss(net, 0, step);
      for (int64_t rank = 1; rank < members; ++rank) sum = sum + loss(net, rank, step);
      return sum / members;
    });
  }
  template <typename M, typename Loss>
  void expect_equal_in_and_out_of_contexts(Training training, const Loss& loss) {
    for (const Way way : {Way::kPlain, Way::kContext}) {
      training.way = way;
      expect_equal_to_one<M>(training, loss);
    }
  }
};

// --- the whole batch ---------------------------------------------------------------------------

class DataParallelWays : public DataParallelEquality,
                         public testing::WithParamInterface<std::tuple<size_t, Way, Rule>> {};

TEST_P(DataParallelWays, EqualsOneProcessWithTheWholeBatch) {
  const auto [members, way, rule] = GetParam();

  expect_equal_to_one<NetImpl>({.members = members, .steps = 5, .way = way, .rule = rule}, net_loss,
                               [members = members](NetImpl& net, int64_t step) {
                                 Tensors inputs, targets;
                                 for (int64_t rank = 0; rank < static_cast<int64_t>(members);
                                      ++rank) {
                                   inputs.push_back(input(rank, step));
                                   targets.push_back(target(rank, step));
                                 }
                                 return distance(net.forward(at::cat(inputs)), at::cat(targets));
                               });
}
INSTANTIATE_TEST_SUITE_P(, DataParallelWays,
                         testing::Combine(testing::Values(2, 4),
                                          testing::Values(Way::kPlain, Way::kContext,
                                                          Way::kDistributed),
                                          testing::Values(Rule::kSgd, Rule::kAdam)));

TEST_F(DataParallelEquality, HoldsWithManySmallBuckets) {
  expect_equal_in_and_out_of_contexts<NetImpl>(
      {.members = 3, .options = {.first_bucket_bytes = 64, .bucket_bytes = 256}}, net_loss);
  expect_equal_in_and_out_of_contexts<UpsideDownImpl>(
      {.members = 3, .options = {.first_bucket_bytes = 16, .bucket_bytes = 64}}, net_loss);
}

TEST_F(DataParallelEquality, HoldsForOneMember) {
  expect_equal_in_and_out_of_contexts<NetImpl>({.members = 1}, net_loss);
}

TEST_F(DataParallelEquality, HoldsWhenAPassHasTwoForwards) {
  expect_equal_in_and_out_of_contexts<NetImpl>(
      {.options = {.first_bucket_bytes = 64, .bucket_bytes = 256}},
      [](auto& net, int64_t rank, int64_t step) {
        return net_loss(net, rank, step) + net_loss(net, rank, step + 100);
      });
}

// --- modules of many kinds ---------------------------------------------------------------------

struct MixedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return layer(x).to(at::kDouble) * wide + narrow.to(at::kDouble);
  }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 3))};
  at::Tensor wide = register_parameter("wide", at::randn({3}, at::kDouble));
  at::Tensor narrow = register_parameter("narrow", at::randn({3}));
};
TEST_F(DataParallelEquality, HoldsForParametersOfSeveralTypes) {
  expect_equal_in_and_out_of_contexts<MixedImpl>({}, net_loss);
}

struct StridedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return x.matmul(turned) + image.pow(2).sum({2, 3}).mean(0) + some.sum();
  }
  at::Tensor turned = register_parameter("turned", at::randn({3, 6}).t());
  at::Tensor image = register_parameter(
      "image", at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  at::Tensor some = register_parameter("some", at::randn({8}).slice(0, 0, 8, 2));
};
TEST_F(DataParallelEquality, HoldsForParametersThatAreNotContiguous) {
  ASSERT_FALSE(StridedImpl().turned.is_contiguous());
  ASSERT_FALSE(StridedImpl().image.is_contiguous());
  ASSERT_FALSE(StridedImpl().some.is_contiguous());
  expect_equal_in_and_out_of_contexts<StridedImpl>({}, net_loss);
}

/// The same tensor under two names of the module.
struct TwiceNamedImpl : torch::nn::Module {
  TwiceNamedImpl() { register_module("again", layer); }
  at::Tensor forward(const at::Tensor& x) { return last(layer(layer(x).tanh())); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 6))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(6, 3))};
};
/// Two layers whose parameter "weight" is one tensor.
struct TiedLayer : torch::nn::Module {
  explicit TiedLayer(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor weight;
};
struct TiedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return last(x.matmul(first->weight).tanh().matmul(second->weight));
  }
  std::shared_ptr<TiedLayer> first =
      register_module("first", std::make_shared<TiedLayer>(at::randn({6, 6}) * 0.3));
  std::shared_ptr<TiedLayer> second =
      register_module("second", std::make_shared<TiedLayer>(first->weight));
  torch::nn::Linear last{register_module("last", torch::nn::Linear(6, 3))};
};
TEST_F(DataParallelEquality, HoldsForALayerThatIsUsedTwice) {
  expect_equal_in_and_out_of_contexts<TwiceNamedImpl>({}, net_loss);
}
TEST_F(DataParallelEquality, HoldsForAParameterThatTwoLayersShare) {
  for (const size_t bytes : {size_t{64}, size_t{1} << 20}) {
    expect_equal_in_and_out_of_contexts<TiedImpl>(
        {.options = {.first_bucket_bytes = bytes, .bucket_bytes = bytes}}, net_loss);
  }
}

/// Whose gradients are one tensor for torch, which has less memory than elements.
struct AddedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer(x) + one + other + spread.sum(); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 3))};
  at::Tensor one = register_parameter("one", at::randn({4, 3}));
  at::Tensor other = register_parameter("other", at::randn({4, 3}));
  at::Tensor spread = register_parameter("spread", at::randn({5, 2}));
};
TEST_F(DataParallelEquality, HoldsForGradientsThatShareMemory) {
  for (const size_t bytes : {size_t{16}, size_t{1} << 20}) {
    expect_equal_in_and_out_of_contexts<AddedImpl>(
        {.options = {.first_bucket_bytes = bytes, .bucket_bytes = bytes}}, net_loss);
  }
}

struct FrozenImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer(x * frozen); }
  at::Tensor frozen = register_parameter("frozen", at::rand({6}) + 1, /*requires_grad=*/false);
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 3))};
};
TEST_F(DataParallelEquality, HoldsWithParametersThatTakeNoGradient) {
  std::vector<Tensors> before(2), after(2);
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<FrozenImpl>();
    DistributedDataParallel<FrozenImpl> net(module, member.group);
    const auto rank = static_cast<size_t>(member.rank);
    before[rank] = values(*module);

    Context context(member.agent);
    net_loss(net, member.rank, 0).backward();
    context.backward({net_loss(net, member.rank, 0)});

    EXPECT_FALSE(module->frozen.grad().defined());
    EXPECT_FALSE(context.gradient(module->frozen).defined());
    const Tensors expected =
        mean_grads(*module, 2, [](auto& alone, int64_t rank) { return net_loss(alone, rank, 0); });
    expect_same(grads(*module), expected);
    expect_same(grads(*module, context), expected);
    after[rank] = grads(*module);
  });
  expect_alike(before);
  expect_alike(after);
}

// --- parameters that are not used ---------------------------------------------------------------

struct BranchesImpl : torch::nn::Module {
  /// Member 0 uses the first branch, member 1 the second, all the others none.
  at::Tensor forward(const at::Tensor& x, int64_t rank) {
    const at::Tensor y = trunk(x);
    return rank == 0 ? first(y) : rank == 1 ? second(y).tanh() : y;
  }
  torch::nn::Linear trunk{register_module("trunk", torch::nn::Linear(6, 3))};
  torch::nn::Linear first{register_module("first", torch::nn::Linear(3, 3))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(3, 3))};
  torch::nn::Linear idle{register_module("idle", torch::nn::Linear(3, 3))};
};
auto branches_loss = [](auto& net, int64_t rank, int64_t step) {
  return distance(net.forward(input(rank, step), rank), target(rank, step));
};
const DataParallelOptions kUnused{
    .first_bucket_bytes = 32, .bucket_bytes = 64, .find_unused_parameters = true};

TEST_F(DataParallelEquality, HoldsWhenMembersUseDifferentParameters) {
  for (const size_t members : {2, 3}) {
    expect_equal_in_and_out_of_contexts<BranchesImpl>({.members = members, .options = kUnused},
                                                      branches_loss);
  }
}

TEST_F(DataParallelEquality, WhatNobodyUsesKeepsTheGradientItHas) {
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<BranchesImpl>();
    DistributedDataParallel<BranchesImpl> net(module, member.group, kUnused);
    const at::Tensor mine = at::full({3}, static_cast<float>(member.rank + 5));
    module->idle->bias.mutable_grad() = mine.clone();

    branches_loss(net, member.rank, 0).backward();
    Context context(member.agent);
    context.backward({branches_loss(net, member.rank, 0)});

    EXPECT_FALSE(module->idle->weight.grad().defined());
    EXPECT_FALSE(context.gradient(module->idle->weight).defined());
    EXPECT_FALSE(context.gradient(module->idle->bias).defined());
    EXPECT_TRUE(at::equal(module->idle->bias.grad(), mine));
    const Tensors expected = mean_grads(
        *module, 2, [](auto& alone, int64_t rank) { return branches_loss(alone, rank, 0); });
    for (const Tensors& got : {grads(*module), grads(*module, context)}) {
      for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(same(got[i], expected[i])) << i;
    }
  });
}

TEST_F(DataParallelEquality, GradientsOfParametersUsedElsewhereAddToThoseThatAreThere) {
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<BranchesImpl>();
    DistributedDataParallel<BranchesImpl> net(module, member.group, kUnused);
    Context context(member.agent);

    for (int64_t step = 0; step < 3; ++step) {
      branches_loss(net, member.rank, step).backward();
      context.backward({branches_loss(net, member.rank, step)});
    }

    const Tensors expected = mean_grads(*module, 2, [](auto& alone, int64_t rank) {
      at::Tensor sum = branches_loss(alone, rank, 0);
      for (int64_t step = 1; step < 3; ++step) sum = sum + branches_loss(alone, rank, step);
      return sum;
    });
    expect_same(grads(*module), expected, ".grad");
    expect_same(grads(*module, context), expected, "context");
  });
}

// A parameter may be used while gradients accumulate and then no more: what it has is still
// averaged, or replicas that are stepped alike would part.
TEST_F(DataParallelEquality, WhatWasUsedOnlyWhileAccumulatingIsAveragedToo) {
  std::vector<Tensors> plain(2), in_context(2);
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<BranchesImpl>();
    DistributedDataParallel<BranchesImpl> net(module, member.group, kUnused);
    Context context(member.agent);
    const auto loss = [&](int64_t branch) {
      return distance(net.forward(input(member.rank, 0), branch), target(member.rank, 0));
    };
    {
      const auto alone = net.no_sync();
      loss(member.rank).backward();
      context.backward({loss(member.rank)});
    }
    loss(2).backward();
    context.backward({loss(2)});
    plain[static_cast<size_t>(member.rank)] = grads(*module);
    in_context[static_cast<size_t>(member.rank)] = grads(*module, context);
  });
  expect_alike(plain);
  expect_alike(in_context);
}

// --- sparse gradients --------------------------------------------------------------------------

/// What member `rank` looks up at `step`; the last one looks up nothing at step 1.
at::Tensor rows(int64_t rank, int64_t step) {
  const int64_t count = step == 1 && rank == 1 ? 0 : 6 + 2 * rank;
  return (at::arange(count, at::kLong) * (3 + rank) + step) % 10;
}
template <bool kSparse>
struct WordsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids) { return layer(words(ids)).pow(2).sum(); }
  torch::nn::Embedding words{register_module(
      "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(kSparse)))};
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 2))};
};
template <bool kSparse>
struct BagsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor offsets = at::arange(0, ids.numel() + 1, 2, at::kLong);
    return layer(bags(ids, offsets)).pow(2).sum();
  }
  torch::nn::EmbeddingBag bags{register_module(
      "bags", torch::nn::EmbeddingBag(
                  torch::nn::EmbeddingBagOptions(10, 4).mode(torch::kSum).sparse(kSparse)))};
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 2))};
};
/// Sparse by what it does, not by an embedding's options.
template <bool kSparse>
struct TableImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids) {
    return (at::embedding(table, ids, -1, false, kSparse) * scale).pow(2).sum();
  }
  at::Tensor table = register_parameter("table", at::randn({10, 4}));
  at::Tensor scale = register_parameter("scale", at::randn({4}));
};
auto rows_loss = [](auto& net, int64_t rank, int64_t step) {
  return net.forward(rows(rank, step)) * 0.05;
};

template <typename Sparse>
class DataParallelSparse : public DataParallelEquality {};
template <template <bool> typename M>
struct Pair {
  using Sparse = M<true>;
  using Dense = M<false>;
};
using Pairs = testing::Types<Pair<WordsImpl>, Pair<BagsImpl>, Pair<TableImpl>>;
TYPED_TEST_SUITE(DataParallelSparse, Pairs);

TYPED_TEST(DataParallelSparse, StaySparseAndEqualDenseOnes) {
  using Sparse = typename TypeParam::Sparse;
  using Dense = typename TypeParam::Dense;
  DataParallelOptions options;
  if (std::is_same_v<Sparse, TableImpl<true>>) options.sparse_parameters = {"table"};
  Dense pattern;
  std::vector<Tensors> got(2);
  this->on_members(2, [&](const Member& member) {
    auto module = std::make_shared<Sparse>();
    copy_state(*module, pattern);
    DistributedDataParallel<Sparse> net(module, member.group, options);
    for (int64_t step = 0; step < 3; ++step) {
      forget_grads(*module);
      Context context(member.agent);

      rows_loss(net, member.rank, step).backward();
      context.backward({rows_loss(net, member.rank, step)});

      EXPECT_TRUE(module->parameters()[0].grad().is_sparse());
      EXPECT_TRUE(context.gradient(module->parameters()[0]).is_sparse());
      const Tensors expected = mean_grads(
          pattern, 2, [&](auto& alone, int64_t rank) { return rows_loss(alone, rank, step); });
      expect_same(grads(*module), expected, ".grad");
      expect_same(grads(*module, context), expected, "context");
    }
    got[static_cast<size_t>(member.rank)] = grads(*module);
  });
  expect_alike(got);
}

TEST_F(DataParallelEquality, HoldsForSparseGradientsNobodySpokeOf) {
  expect_equal_in_and_out_of_contexts<TableImpl<true>>({}, rows_loss);
}
TEST_F(DataParallelEquality, HoldsForSparseEmbeddings) {
  expect_equal_in_and_out_of_contexts<WordsImpl<true>>({.members = 3}, rows_loss);
  expect_equal_in_and_out_of_contexts<BagsImpl<true>>({.members = 2}, rows_loss);
}

}  // namespace
}  // namespace weft::data_parallel

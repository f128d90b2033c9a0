// Behaviour 40: replicas on several workers, alone and as a part of larger models.
// SPDX-License-Identifier: BSD-3-Clause
#include <map>
#include <mutex>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include "data_parallel_scene.h"
#include "weft/optim.h"

namespace weft::data_parallel {
namespace {

using nn::RemoteModule;
using torch::nn::LinearImpl;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using Net = DistributedDataParallel<NetImpl>;
using Behaviour40_DataParallel = Scene;

const DataParallelOptions kSmallBuckets{.first_bucket_bytes = 16, .bucket_bytes = 64};

auto first_loss = [](auto& net, int64_t rank) { return net_loss(net, rank, 0); };

TEST_F(Behaviour40_DataParallel, StartsWithWhatTheFirstMemberHas) {
  std::vector<Tensors> brought(3), have(3);
  on_members(3, [&](const Member& member) {
    auto module = std::make_shared<NetImpl>();
    const auto rank = static_cast<size_t>(member.rank);
    brought[rank] = values(*module);

    const Net net(module, member.group);

    have[rank] = values(*net.module());
    EXPECT_EQ(net.module(), module);
    EXPECT_EQ(net.process_group().size(), 3);
  });

  expect_alike({brought[0], have[0], have[1], have[2]});
  EXPECT_FALSE(at::equal(brought[0][0], brought[1][0]));
}

TEST_F(Behaviour40_DataParallel, TakesAModuleHolder) {
  on_members(2, [&](const Member& member) {
    const torch::nn::Linear layer(6, 3);
    DistributedDataParallel<LinearImpl> net(layer, member.group);

    net_loss(net, member.rank, 0).backward();

    EXPECT_TRUE(layer->weight.grad().defined());
  });
}

// --- passes ------------------------------------------------------------------------------------

TEST_F(Behaviour40_DataParallel, AGraphThatIsKeptGivesTheSameAgain) {
  on_members(2, [&](const Member& member) {
    Net net(std::make_shared<NetImpl>(), member.group, kSmallBuckets);
    Context context(member.agent);

    const at::Tensor in_context = net_loss(net, member.rank, 0);
    context.backward({in_context}, {.retain_graph = true});
    context.backward({in_context});
    const at::Tensor plain = net_loss(net, member.rank, 0);
    plain.backward({}, /*retain_graph=*/true);
    plain.backward();

    Tensors expected = mean_grads(*net.module(), 2, first_loss);
    for (at::Tensor& each : expected) each.mul_(2);
    expect_same(grads(*net.module()), expected, ".grad");
    expect_same(grads(*net.module(), context), expected, "context");
  });
}

TEST_F(Behaviour40_DataParallel, TwoReplicasAreInOneModel) {
  for (const bool one_group : {true, false}) {
    std::vector<Tensors> learned(2);
    auto lower = std::make_shared<LinearImpl>(6, 6);
    auto upper = std::make_shared<NetImpl>();
    on_members(2, [&](const Member& member) {
      auto below = std::make_shared<LinearImpl>(6, 6);
      copy_state(*below, *lower);
      const ProcessGroup other =
          one_group ? member.group : new_group(member.agent, {"t0", "t1"}, {kGroupTimeout});
      DistributedDataParallel<LinearImpl> first(below, member.group, kSmallBuckets);
      Net second(copy_of(*upper), other, kSmallBuckets);
      Context context(member.agent);

      const auto loss = [&] {
        return distance(second.forward(first.forward(input(member.rank, 0))),
                        target(member.rank, 0));
      };
      loss().backward();
      context.backward({loss()});

      Tensors got = grads(*second.module());
      got.push_back(below->weight.grad());
      expect_same({context.gradient(below->weight)}, {below->weight.grad()}, "context");
      learned[static_cast<size_t>(member.rank)] = got;
    });
    for (int64_t rank = 0; rank < 2; ++rank) {
      (distance(upper->forward(lower->forward(input(rank, 0))), target(rank, 0)) / 2).backward();
    }
    Tensors expected = grads(*upper);
    expected.push_back(lower->weight.grad());

    expect_alike(learned);
    expect_same(learned[0], expected);
  }
}

TEST_F(Behaviour40_DataParallel, PassesWithoutGradientsAreEveryonesOwn) {
  on_members(2, [&](const Member& member) {
    Net net(std::make_shared<NetImpl>(), member.group);
    if (member.rank == 1) {
      const at::NoGradGuard off;
      for (int i = 0; i < 3; ++i) net.forward(input(1, i));
    }

    net_loss(net, member.rank, 0).backward();

    expect_same(grads(*net.module()), mean_grads(*net.module(), 2, first_loss));
  });
}

// --- accumulation ------------------------------------------------------------------------------

auto two_losses = [](auto& net, int64_t rank) {
  return net_loss(net, rank, 0) + net_loss(net, rank, 1);
};

TEST_F(Behaviour40_DataParallel, AccumulatesBeforeTheMembersMeet) {
  std::vector<Tensors> got(2);
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<NetImpl>();
    Net net(module, member.group);
    {
      const auto alone = net.no_sync();
      net_loss(net, member.rank, 0).backward();
    }
    const Tensors own = grads(*module);
    net_loss(net, member.rank, 1).backward();

    auto local = copy_of(*module);
    net_loss(*local, member.rank, 0).backward();
    expect_same(own, grads(*local), "not averaged yet");
    expect_same(grads(*module), mean_grads(*module, 2, two_losses));
    got[static_cast<size_t>(member.rank)] = grads(*module);
  });
  expect_alike(got);
}

TEST_F(Behaviour40_DataParallel, AccumulatesInAContext) {
  std::vector<Tensors> got(2);
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<NetImpl>();
    Net net(module, member.group);
    Context context(member.agent);
    {
      const auto alone = net.no_sync();
      context.backward({net_loss(net, member.rank, 0)});
    }
    const Tensors own = grads(*module, context);
    context.backward({net_loss(net, member.rank, 1)});

    auto local = copy_of(*module);
    net_loss(*local, member.rank, 0).backward();
    expect_same(own, grads(*local), "not averaged yet");
    expect_same(grads(*module, context), mean_grads(*module, 2, two_losses));
    got[static_cast<size_t>(member.rank)] = grads(*module, context);
  });
  expect_alike(got);
}

TEST_F(Behaviour40_DataParallel, MembersMayAccumulateDifferentNumbersOfBatches) {
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<NetImpl>();
    Net net(module, member.group);
    if (member.rank == 1) {
      const auto alone = net.no_sync();
      net_loss(net, 1, 0).backward();
    }
    net_loss(net, member.rank, 1).backward();

    expect_same(grads(*module), mean_grads(*module, 2, [](auto& alone, int64_t rank) {
                  return rank == 1 ? two_losses(alone, 1) : net_loss(alone, 0, 1);
                }));
  });
}

// --- buffers -----------------------------------------------------------------------------------

struct NormalizedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer(norm(x)) * scale; }
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(6))};
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 3))};
  at::Tensor scale = register_buffer("scale", at::ones({}));
};
using Normalized = DistributedDataParallel<NormalizedImpl>;

TEST_F(Behaviour40_DataParallel, EveryForwardBeginsWithTheBuffersOfTheFirst) {
  on_members(2, [&](const Member& member) {
    Normalized net(std::make_shared<NormalizedImpl>(), member.group);
    // What the first member's buffers are after each forward.
    NormalizedImpl first;
    for (int64_t i = 0; i < 3; ++i) {
      net.module()->scale.fill_(member.rank + 2);
      NormalizedImpl own;
      copy_state(own, first);

      net_loss(net, member.rank, i).backward();

      own.forward(input(member.rank, i));
      first.forward(input(0, i));
      EXPECT_EQ(net.module()->scale.item<float>(), 2);
      EXPECT_TRUE(same(net.module()->norm->running_mean, own.norm->running_mean)) << i;
      EXPECT_TRUE(same(net.module()->norm->running_var, own.norm->running_var)) << i;
      EXPECT_EQ(net.module()->norm->num_batches_tracked.item<int64_t>(), i + 1);
    }
  });
}

TEST_F(Behaviour40_DataParallel, BuffersAreLeftAloneIfToldSo) {
  on_members(2, [&](const Member& member) {
    Normalized net(std::make_shared<NormalizedImpl>(), member.group, {.broadcast_buffers = false});
    net.module()->scale.fill_(member.rank + 2);

    net_loss(net, member.rank, 0).backward();

    EXPECT_EQ(net.module()->scale.item<float>(), static_cast<float>(member.rank + 2));
  });
}

TEST_F(Behaviour40_DataParallel, OutsideOfTrainingBuffersDoNotTravel) {
  on_members(2, [&](const Member& member) {
    Normalized net(std::make_shared<NormalizedImpl>(), member.group);
    net.module()->scale.fill_(member.rank + 2);
    if (member.rank == 1) {
      const at::NoGradGuard off;
      net.forward(input(1, 0));
      net.eval();
      net.forward(input(1, 0));
      net.train();
      EXPECT_EQ(net.module()->scale.item<float>(), 3);
    }

    net_loss(net, member.rank, 0).backward();

    EXPECT_EQ(net.module()->scale.item<float>(), 2);
  });
}

struct BatchesImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer(norm(x)); }
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(6))};
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 3))};
};
// One member evaluates with gradients on, which the others do not.
TEST_F(Behaviour40_DataParallel, AnEvaluationByOneMemberDoesNotUpsetTheOthers) {
  std::vector<Tensors> got(2);
  on_members(2, [&](const Member& member) {
    DistributedDataParallel<BatchesImpl> net(std::make_shared<BatchesImpl>(), member.group);
    for (int64_t step = 0; step < 3; ++step) {
      if (member.rank == 0) {
        net.eval();
        net.forward(input(0, step));
        net.train();
      }
      distance(net.forward(input(member.rank, step)), target(member.rank, step)).backward();
    }
    got[static_cast<size_t>(member.rank)] = grads(*net.module());
  });
  expect_alike(got);
}

// Bringing buffers for the second forward must not spoil what the first one keeps for backward.
TEST_F(Behaviour40_DataParallel, BuffersComeBetweenTwoForwardsOfOnePass) {
  on_members(2, [&](const Member& member) {
    DistributedDataParallel<BatchesImpl> net(std::make_shared<BatchesImpl>(), member.group);

    (net_loss(net, member.rank, 0) + net_loss(net, member.rank, 1)).backward();

    EXPECT_TRUE(net.module()->layer->weight.grad().defined());
  });
}

// --- parts of models on several workers ---------------------------------------------------------

/// A module of the worker "ps", which others ask it for.
template <typename M>
RemoteModule<M>& shared() {
  static RemoteModule<M> module;
  return module;
}
template <typename M>
RemoteModule<M> give_shared() {
  return shared<M>();
}
template <typename M>
class Sharing {
 public:
  template <typename... Args>
  explicit Sharing(Agent& ps, Args... args) {
    shared<M>() = RemoteModule<M>(ps, "ps", args...);
  }
  ~Sharing() { shared<M>() = {}; }
  RemoteModule<M>* operator->() const { return &shared<M>(); }
};

/// A layer of another worker's between two of its own.
struct ReachingImpl : torch::nn::Module {
  explicit ReachingImpl(RemoteModule<LinearImpl> there) : there(std::move(there)) {}
  at::Tensor forward(const at::Tensor& x) { return second(there.forward(first(x)).tanh()); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(6, 4))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(5, 3))};
  RemoteModule<LinearImpl> there;
};
at::Tensor gradient_there(int64_t context_id, RRef<at::Tensor> parameter) {
  return autograd::gradient(context_id, parameter.local_value());
}

TEST_F(Behaviour40_DataParallel, WrapsAModuleThatReachesOtherWorkers) {
  const Sharing<LinearImpl> layer(workers[4], 4, 5);
  const auto state = layer->state();
  std::vector<Tensors> got(2);
  on_members(2, [&](const Member& member) {
    const auto there = member.agent.sync<give_shared<LinearImpl>>("ps");
    auto module = std::make_shared<ReachingImpl>(there);
    DistributedDataParallel<ReachingImpl> net(module, member.group, kSmallBuckets);
    Context context(member.agent);

    context.backward({net_loss(net, member.rank, 0)});

    // The same model here.
    const auto alone = [&](int64_t rank, double factor) {
      const Tensors own = values(*module);
      Tensors leaves;
      for (const at::Tensor& each : own) leaves.push_back(each.clone().set_requires_grad(true));
      const at::Tensor weight = state.at("weight").detach().clone().set_requires_grad(true);
      const at::Tensor bias = state.at("bias").detach();
      at::Tensor y = at::linear(at::linear(input(rank, 0), leaves[0], leaves[1]), weight, bias);
      y = at::linear(y.tanh(), leaves[2], leaves[3]);
      (distance(y, target(rank, 0)) * factor).backward();
      Tensors all;
      for (const at::Tensor& each : leaves) all.push_back(each.grad());
      return std::pair(all, weight.grad());
    };
    Tensors expected = alone(0, 0.5).first;
    const Tensors others = alone(1, 0.5).first;
    for (size_t i = 0; i < expected.size(); ++i) expected[i].add_(others[i]);
    expect_same(grads(*module, context), expected);
    const at::Tensor remote =
        member.agent.sync<gradient_there>("ps", context.id(), there.remote_parameters()[0]);
    EXPECT_TRUE(same(remote, alone(member.rank, 1).second)) << "what is not replicated is its own";
    got[static_cast<size_t>(member.rank)] = grads(*module, context);
    member.group.barrier();
  });
  expect_alike(got);
}

TEST_F(Behaviour40_DataParallel, ReplicasOfAHybridModelStayEqualForTwoHundredSteps) {
  const Sharing<torch::nn::EmbeddingBagImpl> table(
      workers[4], torch::nn::EmbeddingBagOptions(100, 6).mode(torch::kSum).sparse(true));
  const at::Tensor before = table->state().at("weight").clone();
  on_members(2, [&](const Member& member) {
    const auto mine = member.agent.sync<give_shared<torch::nn::EmbeddingBagImpl>>("ps");
    Net net(std::make_shared<NetImpl>(), member.group, kSmallBuckets);
    auto parameters = mine.remote_parameters();
    for (const auto& each : nn::parameter_rrefs(member.agent, *net.module())) {
      parameters.push_back(each);
    }
    optim::DistributedOptimizer<SGD> optimizer(member.agent, parameters, SGDOptions(0.05));

    for (int64_t i = 0; i < 200; ++i) {
      const at::Tensor ids = (at::arange(20, at::kLong) * (3 + member.rank) + i) % 100;
      const at::Tensor offsets = at::arange(0, 20, 5, at::kLong);
      Context context(member.agent);
      const at::Tensor y = net.forward(mine.forward(ids, offsets));
      context.backward({distance(y, target(member.rank, i))});
      optimizer.step(context);

      for (const at::Tensor& each : net.module()->parameters()) {
        const Tensors all = member.group.all_gather(each.detach());
        ASSERT_TRUE(at::equal(all[0], all[1])) << "step " << i;
      }
    }
  });
  EXPECT_FALSE(at::allclose(table->state().at("weight"), before));
}

/// The replicas of workers that serve; by name.
struct Replicas {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Net>> by_worker;
  Net& mine() {
    const std::lock_guard lock(mutex);
    return *by_worker.at(current_agent().info().name);
  }
} replicas;
void make_replica() {
  auto net = std::make_shared<Net>(std::make_shared<NetImpl>(), new_group({"t0", "t1"}));
  const std::lock_guard lock(replicas.mutex);
  replicas.by_worker[current_agent().info().name] = std::move(net);
}
at::Tensor forward_replica(at::Tensor x) { return replicas.mine().forward(x); }
Tensors replica_gradients(int64_t context_id) {
  Tensors all;
  for (const at::Tensor& each : replicas.mine().module()->parameters()) {
    all.push_back(autograd::gradient(context_id, each));
  }
  return all;
}

class Behaviour40_RemoteReplicas : public Scene {
 protected:
  Behaviour40_RemoteReplicas() {
    std::vector<Future<void>> made;
    for (const char* worker : {"t0", "t1"}) made.push_back(workers[4].async<make_replica>(worker));
    for (auto& each : made) each.wait();
  }
  ~Behaviour40_RemoteReplicas() override {
    const std::lock_guard lock(replicas.mutex);
    replicas.by_worker.clear();
  }
};

TEST_F(Behaviour40_RemoteReplicas, AreAveragedInTheContextOfTheirCaller) {
  for (int64_t i = 0; i < 3; ++i) {
    Context context(workers[4]);
    std::vector<Future<at::Tensor>> outputs;
    for (const int64_t rank : {0, 1}) {
      outputs.push_back(workers[4].async<forward_replica>(static_cast<int>(rank), input(rank, i)));
    }
    const at::Tensor loss =
        distance(outputs[0].wait(), target(0, i)) + distance(outputs[1].wait(), target(1, i));
    context.backward({loss});

    const NetImpl& module = *replicas.by_worker.at("t0")->module();
    const Tensors expected =
        mean_grads(module, 2, [i](auto& alone, int64_t rank) { return net_loss(alone, rank, i); });
    const Tensors first = workers[4].sync<replica_gradients>("t0", context.id());
    expect_same(first, expected);
    expect_alike({first, workers[4].sync<replica_gradients>("t1", context.id())});
  }
}

TEST_F(Behaviour40_RemoteReplicas, AreAveragedInTheContextsOfTwoCallers) {
  std::vector<Tensors> got(2);
  // t2 trains the replica of t0, t3 that of t1.
  std::vector<std::future<void>> callers;
  for (const int64_t rank : {0, 1}) {
    callers.push_back(std::async(std::launch::async, [this, rank, &got] {
      Agent& agent = workers[static_cast<size_t>(2 + rank)];
      Context context(agent);
      const at::Tensor y = agent.sync<forward_replica>(static_cast<int>(rank), input(rank, 0));
      context.backward({distance(y, target(rank, 0))});
      got[static_cast<size_t>(rank)] =
          agent.sync<replica_gradients>(static_cast<int>(rank), context.id());
    }));
  }
  for (auto& each : callers) each.get();

  expect_alike(got);
  expect_same(got[0], mean_grads(*replicas.by_worker.at("t0")->module(), 2, first_loss));
}

}  // namespace
}  // namespace weft::data_parallel

// Trainers that are processes, each with a part of the batch, learn what one process learns from
// all of it. The trainers leave what they learned in files; the test itself is the one process.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "base/temporary_directory.h"
#include "support/scenario.h"
#include "weft/nn.h"
#include "weft/optim.h"

namespace weft::data_parallel {
namespace {

using autograd::Context;
using nn::DataParallelOptions;
using torch::nn::EmbeddingImpl;
using torch::nn::EmbeddingOptions;
using torch::nn::Linear;
using torch::nn::LinearImpl;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using Optimizer = optim::DistributedOptimizer<SGD>;
using Tensors = std::vector<at::Tensor>;
template <typename M>
using Replica = nn::DistributedDataParallel<M>;

constexpr int64_t kSteps = 5, kHybridSteps = 200;
constexpr double kRate = 0.05;
constexpr int64_t kRows = 4;  // of the batch, for each trainer
constexpr int64_t kInput = 6, kHidden = 32, kOutput = 3, kWords = 9;
constexpr uint64_t kServerSeed = 100;  // no trainer's
const char* const kServer = "ps";
const char* const kResults = "WEFT_TEST_RESULTS";
// Several buckets even of a small model.
const DataParallelOptions kSmallBuckets{.first_bucket_bytes = 64, .bucket_bytes = 256};

// The parts of some trainers, from `first` on, of the batch of a step.
struct Batch {
  int64_t first;
  int64_t step;
  at::Tensor input, ids, target;
};
Batch batch_of(int64_t first, int64_t parts, int64_t step) {
  const at::Tensor rows = at::arange(kRows * first, kRows * (first + parts), at::kLong);
  const auto numbers = [&](int64_t width, int64_t shift) {
    const at::Tensor places = rows.unsqueeze(1) * width + at::arange(width, at::kLong);
    return (places * 0.37 + static_cast<double>(step + shift) * 0.7).sin();
  };
  // Rows of a part share words, and neighbouring parts share one.
  const at::Tensor ids = (rows.bitwise_and(~int64_t{2}) * 3 + step).remainder(kWords);
  return {first, step, numbers(kInput, 0), ids, numbers(kOutput, 50)};
}
at::Tensor loss(auto& net, const Batch& batch) {
  return at::mse_loss(net.forward(batch), batch.target);
}

template <int64_t kWidth>
struct NetImpl : torch::nn::Module {
  at::Tensor forward(const Batch& batch) {
    const at::Tensor hidden = first(batch.input).tanh();
    // So that the same rate suits every width.
    return second(middle ? middle(hidden) : hidden) * (2 / std::sqrt(kWidth));
  }
  Linear first{register_module("first", Linear(kInput, kWidth))};
  Linear second{register_module("second", Linear(kWidth, kOutput))};
  std::function<at::Tensor(const at::Tensor&)> middle;  // what is not its own, if it has such
};
using SmallNet = NetImpl<kHidden>;
// Has buckets so large that each member reduces a share of them.
using LargeNet = NetImpl<50'000>;

// Each trainer's part takes another branch than its neighbour's, and another one in the next step.
// Of two trainers' parts often none takes the left or the right one.
struct BranchesImpl : torch::nn::Module {
  at::Tensor forward(const Batch& batch) {
    Tensors parts = trunk(batch.input).split(kRows);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t branch = (batch.first + static_cast<int64_t>(i) + batch.step) % 3;
      if (branch == 0) parts[i] = left(parts[i]);
      if (branch == 1) parts[i] = right(parts[i]).tanh();
    }
    return at::cat(parts);
  }
  Linear trunk{register_module("trunk", Linear(kInput, kOutput))};
  Linear left{register_module("left", Linear(kOutput, kOutput))};
  Linear right{register_module("right", Linear(kOutput, kOutput))};
  Linear idle{register_module("idle", Linear(kOutput, kOutput))};
};

struct WordsImpl : torch::nn::Module {
  at::Tensor forward(const Batch& batch) { return layer(words(batch.ids)); }
  torch::nn::Embedding words{
      register_module("words", torch::nn::Embedding(EmbeddingOptions(kWords, 4).sparse(true)))};
  Linear layer{register_module("layer", Linear(4, kOutput))};
};

template <typename M, typename... Args>
std::shared_ptr<M> made(uint64_t seed, Args&&... args) {
  at::manual_seed(seed);
  return std::make_shared<M>(std::forward<Args>(args)...);
}
// Every trainer brings other parameters; what one process begins with are those of the first.
template <typename M>
std::shared_ptr<M> brought(const ProcessGroup& group) {
  return made<M>(static_cast<uint64_t>(group.rank()));
}

Tensors values(const Tensors& parameters) {
  Tensors all;
  for (const at::Tensor& each : parameters) all.push_back(each.detach().clone());
  return all;
}
// Each as a file can have it, and whether it was sparse; an undefined one is empty.
Tensors gradients(const Tensors& parameters, const auto& gradient_of) {
  Tensors all;
  for (const at::Tensor& each : parameters) {
    const at::Tensor found = gradient_of(each);
    const at::Tensor gradient = found.defined() ? found : at::empty({0});
    all.push_back(gradient.is_sparse() ? gradient.to_dense() : gradient.clone());
    all.push_back(at::scalar_tensor(gradient.is_sparse() ? 1 : 0));
  }
  return all;
}
Tensors gradients_in(const Context& context, const Tensors& parameters) {
  return gradients(parameters, [&](const at::Tensor& each) { return context.gradient(each); });
}
void append(Tensors& record, const Tensors& more) {
  record.insert(record.end(), more.begin(), more.end());
}

// What is compared: the gradients of every step, which `step` returns, and parameters at the end.
Tensors record_of(const Tensors& parameters, const std::function<Tensors(int64_t)>& step) {
  Tensors record;
  for (int64_t i = 0; i < kSteps; ++i) append(record, step(i));
  append(record, values(parameters));
  return record;
}
// `backward` is to leave gradients in the parameters.
Tensors train_here(const Tensors& parameters, const std::function<void(int64_t)>& backward) {
  SGD optimizer(parameters, SGDOptions(kRate));
  return record_of(parameters, [&](int64_t step) {
    for (const at::Tensor& each : parameters) each.mutable_grad().reset();
    backward(step);
    optimizer.step();
    return gradients(parameters, [](const at::Tensor& each) { return each.grad(); });
  });
}

std::string file_of(const std::string& directory, const std::string& what, int rank) {
  return directory + "/" + what + " " + std::to_string(rank);
}
void hand_over(const std::string& what, int rank, const Tensors& record) {
  torch::save(record, file_of(std::getenv(kResults), what, rank));
}

class Results {
 public:
  Results(const char* scenario, int world_size)
      : workers_(scenario, world_size, {{kResults, directory_.path()}}) {}
  bool are_there() { return workers_.all_succeed(std::chrono::seconds(100)); }
  Tensors of(const std::string& what, int rank) const {
    Tensors record;
    torch::load(record, file_of(directory_.path(), what, rank));
    return record;
  }

 private:
  const base::TemporaryDirectory directory_{"weft-results"};
  test::Workers workers_;
};

// Relative to the largest element: sums that are made in another order err by that scale.
constexpr double kRounding = 1e-5;
bool alike(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes() || a.numel() == 0) return a.sizes() == b.sizes();
  return (a - b).abs().max().item<double>() <= tolerance * b.abs().max().item<double>();
}
void expect_alike(const Tensors& got, const Tensors& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(alike(got[i], expected[i], tolerance)) << i;
}
void expect_learned(const Results& results, const std::string& what, int trainers,
                    const Tensors& expected) {
  EXPECT_GT(expected.front().abs().max().item<double>(), 0) << "nothing to learn";
  const Tensors first = results.of(what, 0);
  for (int rank = 0; rank < trainers; ++rank) {
    SCOPED_TRACE(what + ", trainer " + std::to_string(rank));
    const Tensors record = results.of(what, rank);
    expect_alike(record, expected, kRounding);
    expect_alike(record, first, 0);
  }
}

std::string trainer(int rank) { return "trainer" + std::to_string(rank); }
ProcessGroup group_of(int trainers) {
  std::vector<std::string> names;
  for (int rank = 0; rank < trainers; ++rank) names.push_back(trainer(rank));
  return new_group(names);
}
void start(const std::string& name) {
  at::set_num_threads(1);  // processes share the cores, and most operators are tiny
  init_rpc(name);
}

class DataParallelProcesses : public testing::TestWithParam<int> {
 protected:
  const int trainers = GetParam();
};
INSTANTIATE_TEST_SUITE_P(, DataParallelProcesses, testing::Values(2, 4),
                         testing::PrintToStringParamName());

template <typename M>
struct Case {
  std::string name;
  DataParallelOptions options = kSmallBuckets;
  int64_t batches = 1;  // of a step; before the last the trainers do not meet
};

// What the workers go through, and the test after them.
void for_each_case(const auto& visit) {
  DataParallelOptions unused = kSmallBuckets;
  unused.find_unused_parameters = true;
  visit(Case<SmallNet>{"small"});
  visit(Case<LargeNet>{"large", DataParallelOptions{}});
  visit(Case<BranchesImpl>{"unused parameters", unused});
  visit(Case<SmallNet>{"accumulation", kSmallBuckets, 3});
  visit(Case<BranchesImpl>{"accumulation and unused parameters", unused, 2});
  visit(Case<WordsImpl>{"sparse gradients"});
}

// Does the batches of a step; `backward` takes the loss of each.
template <typename M, typename Backward>
void do_batches(const Case<M>& each, Replica<M>& net, int64_t step, const Backward& backward) {
  const int rank = net.process_group().rank();
  const auto batch = [&](int64_t i) { return batch_of(rank, 1, step * each.batches + i); };
  for (int64_t i = 0; i + 1 < each.batches; ++i) {
    const auto alone = net.no_sync();
    backward(loss(net, batch(i)));
  }
  backward(loss(net, batch(each.batches - 1)));
}

template <typename M>
Tensors train_plainly(const Case<M>& each, const ProcessGroup& group) {
  Replica<M> net(brought<M>(group), group, each.options);
  return train_here(net.module()->parameters(), [&](int64_t step) {
    do_batches(each, net, step, [](const at::Tensor& loss) { loss.backward(); });
  });
}

template <typename M>
Tensors train_in_contexts(const Case<M>& each, const ProcessGroup& group) {
  Replica<M> net(brought<M>(group), group, each.options);
  const Tensors parameters = net.module()->parameters();
  Optimizer optimizer(nn::parameter_rrefs(*net.module()), SGDOptions(kRate));
  return record_of(parameters, [&](int64_t step) {
    Context context;
    do_batches(each, net, step, [&](const at::Tensor& loss) { context.backward({loss}); });
    for (const at::Tensor& parameter : parameters) REQUIRE_THAT(!parameter.grad().defined());
    optimizer.step(context);
    return gradients_in(context, parameters);
  });
}

template <typename M>
Tensors train_alone(const Case<M>& each, int trainers) {
  const auto net = made<M>(0);
  return train_here(net->parameters(), [&](int64_t step) {
    for (int64_t i = 0; i < each.batches; ++i) {
      loss(*net, batch_of(0, trainers, step * each.batches + i)).backward();
    }
  });
}

SCENARIO(data_parallel_cases) {
  start(trainer(rank));
  const ProcessGroup group = group_of(world_size);
  for_each_case([&](const auto& each) {
    hand_over(each.name + ", plain", rank, train_plainly(each, group));
    hand_over(each.name + ", contexts", rank, train_in_contexts(each, group));
  });
  shutdown();
  return 0;
}

TEST_P(DataParallelProcesses, LearnWhatOneLearnsFromTheWholeBatch) {
  Results results("data_parallel_cases", trainers);

  ASSERT_TRUE(results.are_there());

  for_each_case([&](const auto& each) {
    const Tensors expected = train_alone(each, trainers);
    expect_learned(results, each.name + ", plain", trainers, expected);
    expect_learned(results, each.name + ", contexts", trainers, expected);
  });
}

// Workers that need each other do theirs at the same time.
void between_meetings(const std::function<void()>& part) {
  barrier();
  part();
  barrier();
}

// A module of the server's, which trainers ask it for.
template <typename M>
std::atomic<const nn::RemoteModule<M>*> shared = nullptr;
template <typename M>
nn::RemoteModule<M> give_shared() {
  return *shared<M>.load();
}
// Hands over what the module has after others have used it.
template <typename M, typename... Args>
void serve_shared(Args... args) {
  at::manual_seed(kServerSeed);
  const nn::RemoteModule<M> module(kServer, args...);
  shared<M> = &module;
  between_meetings([] {});
  Tensors after;
  for (const auto& [name, tensor] : module.state()) after.push_back(tensor);
  hand_over("server", 0, after);
}

// Every trainer steps the server's part, by the gradients of its part of the batch alone.
Optimizer optimizer_of(const nn::AnyRemoteModule& there, const torch::nn::Module& here,
                       const ProcessGroup& group) {
  return Optimizer(Optimizer::Groups{{there.remote_parameters(), SGDOptions(kRate / group.size())},
                                     {nn::parameter_rrefs(here), SGDOptions(kRate)}},
                   SGDOptions(kRate));
}

Tensors train_reaching(const ProcessGroup& group) {
  const auto there = rpc_sync<give_shared<LinearImpl>>(kServer);
  Replica<SmallNet> net(brought<SmallNet>(group), group, kSmallBuckets);
  net.module()->middle = [there](const at::Tensor& x) { return there.forward(x); };
  const Tensors parameters = net.module()->parameters();
  Optimizer optimizer = optimizer_of(there, *net.module(), group);
  return record_of(parameters, [&](int64_t step) {
    Context context;
    context.backward({loss(net, batch_of(group.rank(), 1, step))});
    // Nobody steps the server's part while another still goes through it.
    group.barrier();
    optimizer.step(context);
    group.barrier();
    return gradients_in(context, parameters);
  });
}

// A replica that others call.
std::atomic<Replica<SmallNet>*> served = nullptr;
void serve_replica(const ProcessGroup& group, const std::function<void()>& meanwhile) {
  Replica<SmallNet> net(brought<SmallNet>(group), group, kSmallBuckets);
  served = &net;
  between_meetings(meanwhile);
}
at::Tensor forward_served(Batch batch) { return served.load()->forward(batch); }
auto refer_to_served() { return nn::parameter_rrefs(*served.load()->module()); }
Tensors values_of_served() { return values(served.load()->module()->parameters()); }
Tensors gradients_of_served(int64_t context_id) {
  return gradients(served.load()->module()->parameters(),
                   [&](const at::Tensor& each) { return autograd::gradient(context_id, each); });
}

// Trains the replicas that trainers serve, each with that one's part of the batch.
void teach(const std::string& what, int first, int end) {
  std::vector<RRef<at::Tensor>> parameters;
  for (int rank = first; rank < end; ++rank) {
    for (const auto& each : rpc_sync<refer_to_served>(trainer(rank))) parameters.push_back(each);
  }
  Optimizer optimizer(parameters, SGDOptions(kRate));
  std::map<int, Tensors> records;
  for (int64_t step = 0; step < kSteps; ++step) {
    Context context;
    std::map<int, Future<at::Tensor>> outputs;
    for (int rank = first; rank < end; ++rank) {
      outputs.emplace(rank, rpc_async<forward_served>(trainer(rank), batch_of(rank, 1, step)));
    }
    Tensors losses;
    for (const auto& [rank, output] : outputs) {
      losses.push_back(at::mse_loss(output.wait(), batch_of(rank, 1, step).target));
    }
    context.backward(losses);
    for (const auto& [rank, output] : outputs) {
      append(records[rank], rpc_sync<gradients_of_served>(trainer(rank), context.id()));
    }
    optimizer.step(context);
  }
  for (auto& [rank, record] : records) {
    append(record, rpc_sync<values_of_served>(trainer(rank)));
    hand_over(what, rank, record);
  }
}

SCENARIO(data_parallel_elsewhere) {
  const int trainers = world_size - 1;
  start(rank == trainers ? kServer : trainer(rank));
  if (rank == trainers) {
    serve_shared<LinearImpl>(kHidden, kHidden);
    between_meetings([&] { teach("called by one", 0, trainers); });
    between_meetings([] {});
  } else {
    const ProcessGroup group = group_of(trainers);
    between_meetings([&] { hand_over("reaching", rank, train_reaching(group)); });
    serve_replica(group, [] {});
    // Each in a context of its own.
    const int neighbour = (rank + 1) % trainers;
    serve_replica(group, [&] { teach("called by many", neighbour, neighbour + 1); });
  }
  shutdown();
  return 0;
}

TEST_P(DataParallelProcesses, LearnTheSameWithPartsOfTheModelElsewhere) {
  Results results("data_parallel_elsewhere", trainers + 1);

  ASSERT_TRUE(results.are_there());

  const auto layer = made<LinearImpl>(kServerSeed, kHidden, kHidden);
  const auto net = made<SmallNet>(0);
  net->middle = [&](const at::Tensor& x) { return layer->forward(x); };
  SGD optimizer(layer->parameters(), SGDOptions(kRate));
  const Tensors reaching = train_here(net->parameters(), [&](int64_t step) {
    optimizer.zero_grad();
    loss(*net, batch_of(0, trainers, step)).backward();
    optimizer.step();
  });
  expect_learned(results, "reaching", trainers, reaching);
  expect_alike(results.of("server", 0), {layer->bias.detach(), layer->weight.detach()}, kRounding);

  const Tensors called = train_alone(Case<SmallNet>{}, trainers);
  expect_learned(results, "called by one", trainers, called);
  expect_learned(results, "called by many", trainers, called);
}

const EmbeddingOptions kTable = EmbeddingOptions(kWords, kInput).sparse(true);

// All parameters after each step. The trainers change the table at any time, so there is no one
// process to compare with.
Tensors train_hybrid(const ProcessGroup& group) {
  const auto table = rpc_sync<give_shared<EmbeddingImpl>>(kServer);
  Replica<SmallNet> net(brought<SmallNet>(group), group, kSmallBuckets);
  Optimizer optimizer = optimizer_of(table, *net.module(), group);
  Tensors record;
  for (int64_t step = 0; step < kHybridSteps; ++step) {
    Batch batch = batch_of(group.rank(), 1, step);
    Context context;
    batch.input = table.forward(batch.ids);
    context.backward({loss(net, batch)});
    optimizer.step(context);
    append(record, values(net.module()->parameters()));
  }
  return record;
}

SCENARIO(data_parallel_hybrid) {
  start(rank == 2 ? kServer : trainer(rank));
  if (rank == 2) {
    serve_shared<EmbeddingImpl>(kTable);
  } else {
    between_meetings([&] { hand_over("hybrid", rank, train_hybrid(group_of(2))); });
  }
  shutdown();
  return 0;
}

TEST(DataParallelProcessesOnce, ReplicasOfAHybridModelAreIdenticalForTwoHundredSteps) {
  Results results("data_parallel_hybrid", 3);

  ASSERT_TRUE(results.are_there());

  const Tensors first = results.of("hybrid", 0);
  expect_alike(results.of("hybrid", 1), first, 0);
  const Tensors before = values(made<SmallNet>(0)->parameters());
  ASSERT_EQ(first.size(), kHybridSteps * before.size());
  EXPECT_FALSE(alike(first.back(), before.back(), kRounding));
  const Tensors table = values(made<EmbeddingImpl>(kServerSeed, kTable)->parameters());
  EXPECT_FALSE(alike(results.of("server", 0).front(), table.front(), kRounding));
}

}  // namespace
}  // namespace weft::data_parallel

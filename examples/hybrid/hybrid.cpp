// Both kinds of parallelism in one model: its embedding table lives on a parameter server, its
// linear layer is replicated on two trainers, and a master drives them.
//
// One backward pass averages the gradients of the replicas and goes on to the parameter server; one
// optimizer steps both parts.
// SPDX-License-Identifier: BSD-3-Clause
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <weft/nn.h>
#include <weft/optim.h>
#include <weft/rpc.h>

#include "batches.h"

namespace {

constexpr int64_t kEmbedding = 16;
constexpr int64_t kBatches = 10;  // of an epoch

const std::vector<std::string> kTrainers{"trainer0", "trainer1"};

struct Plan {
  uint64_t seed = 1;
  int64_t epochs = 100;
  int64_t iterations = 0;  // not zero: so many, however many epochs that makes
  // Each trainer steps when it is done, as the tutorial's do. The table then changes under the
  // other one at times that no two runs share.
  bool unordered = false;
};

using Table = weft::nn::RemoteModule<torch::nn::EmbeddingBagImpl>;
using Linear = weft::nn::DistributedDataParallel<torch::nn::LinearImpl>;
using Optimizer = weft::optim::DistributedOptimizer<torch::optim::SGD>;
using Clock = std::chrono::steady_clock;

Optimizer make_optimizer(const Table& table, const Linear& fc) {
  std::vector<weft::RRef<at::Tensor>> parameters = table.remote_parameters();
  for (const auto& parameter : weft::nn::parameter_rrefs(*fc.module()))
    parameters.push_back(parameter);
  return Optimizer(parameters, torch::optim::SGDOptions(0.05));
}

// Of the trainers' optimizers one after the other: the table sums their gradients in the same order
// in every run, and nobody looks up rows before all have stepped.
void step_in_turn(Optimizer& optimizer, const weft::autograd::Context& context,
                  const weft::ProcessGroup& trainers) {
  for (int turn = 0; turn < trainers.size(); ++turn) {
    if (turn == trainers.rank()) optimizer.step(context);
    trainers.barrier();
  }
}

// Runs on each trainer, called by the master. Returns iterations per second.
double train(Table table, Plan plan) {
  const weft::ProcessGroup trainers = weft::new_group(kTrainers);
  Linear fc(torch::nn::Linear(kEmbedding, kClasses), trainers);
  Optimizer optimizer = make_optimizer(table, fc);
  Batches batches(plan.seed + static_cast<uint64_t>(trainers.rank()));

  const int64_t count = plan.iterations > 0 ? plan.iterations : plan.epochs * kBatches;
  Clock::time_point start;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Batch batch = batches.next();
    weft::autograd::Context context;
    const at::Tensor output = fc.forward(table.forward(batch.indices, batch.offsets));
    const at::Tensor loss = at::cross_entropy_loss(output, batch.target);
    context.backward({loss});
    plan.unordered ? optimizer.step(context) : step_in_turn(optimizer, context, trainers);

    sum += loss.item<double>();
    if (i == 0) start = Clock::now();  // the first one starts much up
    if (i % kBatches == kBatches - 1) {
      std::printf("%s\tTraining done for epoch %ld\tmean loss: %.9g\n",
                  weft::get_worker_info().name.c_str(), static_cast<long>(i / kBatches),
                  sum / kBatches);
      std::fflush(stdout);
      sum = 0;
    }
  }
  return static_cast<double>(count - 1) /
         std::chrono::duration<double>(Clock::now() - start).count();
}

void run_master(const Plan& plan) {
  const Table table("ps", torch::nn::EmbeddingBagOptions(kRows, kEmbedding).mode(torch::kSum));
  std::vector<weft::Future<double>> training;
  for (const std::string& trainer : kTrainers) {
    // Without a deadline: how long training takes is not known, and a trainer that dies is noticed.
    training.push_back(weft::rpc_async<train>({trainer, weft::Timeout::zero()}, table, plan));
  }
  std::vector<double> rates;
  for (const auto& each : training) rates.push_back(each.wait());
  // Of each trainer: they wait for each other in every backward pass.
  std::printf("iterations per second: %.1f\n", *std::min_element(rates.begin(), rates.end()));
}

int run_worker(const Plan& plan, int rank) {
  at::set_num_threads(1);  // four processes share the cores, and the operators are tiny
  at::manual_seed(plan.seed + static_cast<uint64_t>(rank));  // for the weights
  const char* names[] = {"trainer0", "trainer1", "master", "ps"};
  weft::init_rpc(names[rank]);
  if (rank == 2) run_master(plan);
  weft::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  CLI::App app("An embedding table on a parameter server, a layer replicated on two trainers.");
  app.add_option("--seed", plan.seed, "of weights and data")->capture_default_str();
  app.add_option("--epochs", plan.epochs, "of 10 batches")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--iterations", plan.iterations, "train on so many batches instead")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--unordered", plan.unordered,
               "trainers do not take turns to step: faster, but no two runs are alike");
  CLI11_PARSE(app, argc, argv);
  // Read when a worker starts: OpenBLAS has threads of its own, which spin.
  setenv("OPENBLAS_NUM_THREADS", "1", /*replace=*/0);
  return weft::launch(argc, argv, 4, [&plan](int rank, int) { return run_worker(plan, rank); });
}

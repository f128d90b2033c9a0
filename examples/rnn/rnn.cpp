// A model-parallel language model: its embedding table and decoder live on a parameter server, its
// LSTM on the trainer, and one backward pass and one optimizer step go through both.
//
// With --local one process trains the same model without Weft: train_distributed() and
// train_locally() are all that differs.
// SPDX-License-Identifier: BSD-3-Clause
#include <stdlib.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <torch/nn/module.h>  // what clip_grad.h forgets
#include <torch/nn/utils/clip_grad.h>
#include <weft/nn.h>
#include <weft/optim.h>
#include <weft/rpc.h>

#include "made_text.h"
#include "training.h"

namespace {

struct Flags {
  uint64_t seed = 1;
  int64_t batches = 5;
  std::optional<double> dropout;
  TrainingOptions training;
  bool local = false;
  std::string text, text_to_make;
};

constexpr double kTutorialDropout = 0.5, kTextDropout = 0.1;
constexpr size_t kMadeTextSize = 100'000;

struct Plan {
  Task task;
  TrainingOptions training;
  uint64_t seed;                        // of the first part; the next ones have the next
  std::optional<double> max_norm = {};  // of all gradients together
};

template <typename Parameters>
void append(Parameters& to, const Parameters& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <typename Optimizer, typename Options>
void train_distributed(const Plan& plan, const Options& options) {
  const Task& task = plan.task;
  using Table = weft::nn::RemoteModule<EmbeddingTable>;
  using Output = weft::nn::RemoteModule<Decoder>;
  Model<Table, Output> model{Table("ps", task.sizes, plan.seed),
                             make_lstm(task.sizes, plan.seed + 1),
                             Output("ps", task.sizes, plan.seed + 2)};
  std::vector<weft::RRef<at::Tensor>> parameters = model.table.remote_parameters();
  append(parameters, weft::nn::parameter_rrefs(*model.lstm));
  append(parameters, model.decoder.remote_parameters());
  weft::optim::DistributedOptimizer<Optimizer> optimizer(parameters, options);

  train(task, plan.training, [&](const Batch& batch, Hidden& hidden) {
    weft::autograd::Context context;
    const at::Tensor loss = task.loss(model.forward(batch.tokens, hidden), batch.target);
    context.backward({loss});
    if (plan.max_norm) optimizer.clip_grad_norm(context, *plan.max_norm);
    optimizer.step(context);
    return loss;
  });
}

template <typename Optimizer, typename Options>
void train_locally(const Plan& plan, const Options& options) {
  const Task& task = plan.task;
  Model<EmbeddingTable, Decoder> model{EmbeddingTable(task.sizes, plan.seed),
                                       make_lstm(task.sizes, plan.seed + 1),
                                       Decoder(task.sizes, plan.seed + 2)};
  std::vector<at::Tensor> parameters = model.table.parameters();
  append(parameters, model.lstm->parameters());
  append(parameters, model.decoder.parameters());
  Optimizer optimizer(parameters, options);

  train(task, plan.training, [&](const Batch& batch, Hidden& hidden) {
    optimizer.zero_grad();
    const at::Tensor loss = task.loss(model.forward(batch.tokens, hidden), batch.target);
    loss.backward();
    if (plan.max_norm) torch::nn::utils::clip_grad_norm_(parameters, *plan.max_norm);
    optimizer.step();
    return loss;
  });
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename Optimizer, typename Options>
void train_with(const Flags& flags, const Plan& plan, const Options& options) {
  if (flags.local) return train_locally<Optimizer>(plan, options);
  train_distributed<Optimizer>(plan, options);
}

void run_trainer(const Flags& flags) {
  if (flags.text.empty()) {
    const double dropout = flags.dropout.value_or(kTutorialDropout);
    const Plan plan{tutorial_task(flags.batches, dropout, flags.seed), flags.training, flags.seed};
    return train_with<torch::optim::SGD>(flags, plan, torch::optim::SGDOptions(0.05));
  }
  const double dropout = flags.dropout.value_or(kTextDropout);
  const Plan plan{text_task(read_file(flags.text), dropout), flags.training, flags.seed, 1.0};
  std::printf("%ld different bytes, %zu iterations an epoch\n",
              static_cast<long>(plan.task.sizes.tokens), plan.task.batches.size());
  train_with<torch::optim::Adam>(flags, plan, torch::optim::AdamOptions(5e-3));
}

// The parts of the model take turns: threads of one of them would only disturb the other.
void set_up_libtorch(uint64_t seed) {
  at::set_num_threads(1);
  at::manual_seed(seed);  // for dropout
}

int run_worker(const Flags& flags, int rank) {
  set_up_libtorch(flags.seed + static_cast<uint64_t>(rank));
  weft::init_rpc(rank == 0 ? "trainer" : "ps");
  if (rank == 0) run_trainer(flags);
  weft::shutdown();
  return 0;
}

void run_locally(const Flags& flags) {
  set_up_libtorch(flags.seed);
  run_trainer(flags);
}

void write_text(const Flags& flags) {
  std::ofstream file(flags.text_to_make, std::ios::binary);
  file << make_text(kMadeTextSize, flags.seed) << std::flush;
  if (!file) throw std::runtime_error("cannot write " + flags.text_to_make);
}

void add_options(CLI::App& app, Flags& flags) {
  app.add_option("--seed", flags.seed, "of weights, data and dropout")->capture_default_str();
  app.add_option("--epochs", flags.training.epochs, "passes over the data")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batches", flags.batches, "batches of an epoch, without a text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--iterations", flags.training.iterations, "train on so many batches instead")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--dropout", flags.dropout, "default: 0.5, with a text 0.1")
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--local", flags.local, "the whole model in one process, without Weft");
  app.add_flag("--print-losses", flags.training.print_losses, "of every iteration");
  app.add_option("--text", flags.text, "learn to predict the bytes of this file");
  app.add_option("--log-interval", flags.training.log_interval,
                 "iterations between lines, with a text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--make-text", flags.text_to_make, "only write a text to learn from");
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("A language model on two workers, trained as one.");
  add_options(app, flags);
  CLI11_PARSE(app, argc, argv);
  if (!flags.local && flags.text_to_make.empty()) {
    // Read when a worker starts: OpenBLAS has threads of its own, which spin.
    setenv("OPENBLAS_NUM_THREADS", "1", /*replace=*/0);
    return weft::launch(argc, argv, 2, [&flags](int rank, int) { return run_worker(flags, rank); });
  }
  try {
    flags.local ? run_locally(flags) : write_text(flags);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rnn: %s\n", error.what());
    return 1;
  }
}

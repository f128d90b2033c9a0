// Rows 25 to 27: training of one network on two processes, against torch's DDP on Gloo. Row 25 is
// what averaging gradients adds to a step, row 26 how much of that goes on during the backward
// pass, row 27 the reduction alone.
//
// Both processes do the same things at the same time: commands come to the first, which tells the
// other. The networks are those of torch_ddp.py.
// SPDX-License-Identifier: BSD-3-Clause

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <weft/nn.h>
#include <weft/rpc.h>

#include "support/pair.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kWarmup = 3;  // buckets are made anew after the first pass

struct Network {
  int64_t width;
  int64_t layers;
  int64_t rows;  // of a batch
  size_t bucket_bytes;
};
// 0.5 MiB of gradients, in one bucket.
constexpr Network kSmall{256, 2, 16, size_t{25} << 20};
// 8 MiB of gradients. With the default of 25 MiB there would be two buckets, the second of them
// complete at the very end of the pass: there would be nothing to overlap with, in torch's DDP
// either. The batch is so large that computing takes about as long as communicating.
constexpr Network kLarge{512, 8, 16, size_t{2} << 20};
const std::vector<size_t> kLargeBuckets{1 << 20, 2 << 20, 2 << 20, 2 << 20, 1 << 20};

struct Mlp : torch::nn::Module {
  explicit Mlp(const Network& network) {
    for (int64_t i = 0; i < network.layers; ++i) {
      layers.push_back(
          register_module(std::to_string(i), torch::nn::Linear(network.width, network.width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x).relu();
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

// --- what both processes do ------------------------------------------------------------------

template <typename Call>
double warm_median_microseconds(const weft::ProcessGroup& group, size_t count, const Call& call) {
  for (size_t i = 0; i < kWarmup; ++i) call(i);
  group.barrier();
  return median_microseconds(count, call);
}

template <typename Forward>
double step_microseconds(const weft::ProcessGroup& group, const Network& network, Mlp& mlp,
                         const Forward& forward, size_t count) {
  torch::optim::SGD optimizer(mlp.parameters(), torch::optim::SGDOptions(1e-3));
  const at::Tensor data = at::randn({network.rows, network.width});
  return warm_median_microseconds(group, count, [&](size_t) {
    optimizer.zero_grad();
    forward(data).sum().backward();
    optimizer.step();
  });
}

double alone_microseconds(const weft::ProcessGroup& group, const Network& network, size_t count) {
  Mlp mlp(network);
  return step_microseconds(
      group, network, mlp, [&](const at::Tensor& x) { return mlp.forward(x); }, count);
}

double together_microseconds(const weft::ProcessGroup& group, const Network& network,
                             size_t count) {
  weft::nn::DistributedDataParallel<Mlp> replica(std::make_shared<Mlp>(network), group,
                                                 {.bucket_bytes = network.bucket_bytes});
  return step_microseconds(
      group, network, *replica.module(), [&](const at::Tensor& x) { return replica.forward(x); },
      count);
}

// Of several sizes at the same time.
double reduce_microseconds(const weft::ProcessGroup& group, const std::vector<size_t>& sizes,
                           size_t count) {
  std::vector<at::Tensor> tensors;
  for (const size_t size : sizes)
    tensors.push_back(at::ones({static_cast<int64_t>(size / sizeof(float))}));
  return warm_median_microseconds(group, count, [&](size_t) {
    std::vector<weft::Future<void>> reductions;
    for (const at::Tensor& each : tensors) reductions.push_back(group.all_reduce_async(each));
    for (const auto& each : reductions) each.wait();
  });
}

using Work = std::function<double(const weft::ProcessGroup&, size_t count)>;

Work stepping_alone(const Network& network) {
  return [network](const auto& group, size_t count) {
    return alone_microseconds(group, network, count);
  };
}
Work stepping_together(const Network& network) {
  return [network](const auto& group, size_t count) {
    return together_microseconds(group, network, count);
  };
}
Work reducing(const std::vector<size_t>& sizes) {
  return
      [sizes](const auto& group, size_t count) { return reduce_microseconds(group, sizes, count); };
}

const std::map<std::string, Work>& works() {
  static const std::map<std::string, Work> all{
      {"small_alone", stepping_alone(kSmall)},
      {"small_together", stepping_together(kSmall)},
      {"large_alone", stepping_alone(kLarge)},
      {"large_together", stepping_together(kLarge)},
      {"large_reductions", reducing(kLargeBuckets)},
      {"all_reduce_4K", reducing({size_t{4} << 10})},
      {"all_reduce_512K", reducing({size_t{512} << 10})},
      {"all_reduce_8M", reducing({size_t{8} << 20})},
      {"all_reduce_25M", reducing({size_t{25} << 20})},
  };
  return all;
}

// --- the two processes -----------------------------------------------------------------------

struct Order {
  std::string work;  // empty: no more
  size_t count = 0;
};

// What the caller says, on both. The other pair is measured in between, so it may take a while.
Order tell(const Order& order) {
  return weft::all_gather(order, {}, std::chrono::minutes(15)).at("caller");
}

void run_caller(const std::vector<std::string>& arguments) {
  at::set_num_threads(1);  // a process for each core
  start_worker("caller", arguments);
  {
    const weft::ProcessGroup group = weft::new_group();
    std::map<std::string, Command> commands;
    for (const auto& [name, work] : works()) {
      commands[name] = [&group, &name = name, &work = work](size_t count) {
        tell({name, count});
        return work(group, count);
      };
    }
    answer_commands(commands);
    tell({});
  }
  weft::shutdown();
}

void run_callee(const std::vector<std::string>& arguments) {
  at::set_num_threads(1);
  start_worker("callee", arguments);
  {
    const weft::ProcessGroup group = weft::new_group();
    for (Order order; !(order = tell({})).work.empty();) works().at(order.work)(group, order.count);
  }
  weft::shutdown();
}

// --- the rows --------------------------------------------------------------------------------

constexpr char kTorch[] = "torch's DDP on Gloo";

struct Pairs {
  std::optional<WorkerPair> torch, weft;
};

std::vector<double> differences(std::vector<double> from, const std::vector<double>& less) {
  for (size_t i = 0; i < from.size(); ++i) from[i] -= less[i];
  return from;
}
std::vector<double> sums(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

std::string text_of_step(const char* who, const std::vector<double>& alone,
                         const std::vector<double>& together) {
  char text[100];
  std::snprintf(text, sizeof(text), "%s: %.0f us without, %.0f us with", who, median(alone),
                median(together));
  return text;
}

// Only the difference is printed as a sample; the steps themselves are in the note.
void measure_added_time(const Settings& settings, Pairs& pairs, const std::string& network,
                        const std::string& what, size_t count) {
  const size_t steps = settings.scaled(count);
  const auto series =
      take_turns(settings.rounds(), {asking(pairs.torch, network + "_alone", steps),
                                     asking(pairs.torch, network + "_together", steps),
                                     asking(pairs.weft, network + "_alone", steps),
                                     asking(pairs.weft, network + "_together", steps)});
  std::string note = "a step, " + text_of_step("torch", series[0], series[1]);
  if (pairs.weft) note += "; " + text_of_step("weft", series[2], series[3]);
  print({25, "time DDP adds to a step, " + what, kTorch, "us", at_most(0.8),
         differences(series[1], series[0]), differences(series[3], series[2]), note});
}

void measure_overlap(const Settings& settings, Pairs& pairs) {
  const std::string what = "step with 8 MiB of gradients, sent during the backward pass";
  if (!pairs.weft) {
    print_not_measured(26, what, "weft alone is measured", Absence::kAllowed);
    return;
  }
  const size_t steps = settings.scaled(20);
  const auto series = take_turns(settings.rounds(), {asking(pairs.weft, "large_alone", steps),
                                                     asking(pairs.weft, "large_reductions", steps),
                                                     asking(pairs.weft, "large_together", steps)});
  char note[100];
  std::snprintf(note, sizeof(note),
                "step without DDP %.0f us, its all_reduces alone %.0f us, step with DDP %.0f us",
                median(series[0]), median(series[1]), median(series[2]));
  print({26, what, "step without DDP, then the same all_reduces", "us", at_most(1),
         sums(series[0], series[1]), series[2], note});
}

void measure_reductions(const Settings& settings, Pairs& pairs) {
  struct Size {
    std::string command, what;
    size_t count;
  };
  for (const Size& size :
       {Size{"all_reduce_4K", "4 KiB", 500}, Size{"all_reduce_512K", "512 KiB", 100},
        Size{"all_reduce_8M", "8 MiB", 20}, Size{"all_reduce_25M", "25 MiB", 8}}) {
    const size_t count = settings.scaled(size.count);
    const auto series = take_turns(settings.rounds(), {asking(pairs.torch, size.command, count),
                                                       asking(pairs.weft, size.command, count)});
    print({27, "all_reduce of " + size.what, "torch's Gloo", "us", at_most(1), series[0], series[1],
           ""});
  }
}

void measure(const Settings& settings) {
  print_facts();
  Pairs pairs;
  if (!settings.anchors_only)
    pairs.weft.emplace(WorkerPair::weft("default", WorkerPair::Way::kNearest));
  const bool has_torch = torch_rpc_is_installed();
  if (has_torch) pairs.torch.emplace(WorkerPair::torch_ddp(settings.scripts));
  const auto wants = [&](int row) {
    if (settings.wants(row) && !has_torch)
      print_not_measured(row, "against torch's DDP", "python3-torch missing", Absence::kAllowed);
    return settings.wants(row) && has_torch;
  };
  if (wants(25)) {
    measure_added_time(settings, pairs, "small", "0.5 MiB of gradients", 100);
    measure_added_time(settings, pairs, "large", "8 MiB of gradients", 20);
  }
  if (settings.wants(26)) measure_overlap(settings, pairs);
  if (wants(27)) measure_reductions(settings, pairs);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_program(
      argc, argv, {{"weft_callee", bench::run_callee}, {"weft_caller", bench::run_caller}},
      bench::measure);
}

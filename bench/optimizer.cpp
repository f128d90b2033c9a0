// Row 22: a step of a distributed optimizer over two owners with 100 small parameters each, against
// torch RPC's DistributedOptimizer.
// SPDX-License-Identifier: BSD-3-Clause

#include <string>
#include <vector>

#include <weft/optim.h>

#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kSteps = 500;
constexpr size_t kTorchSteps = 100;
constexpr size_t kParameters = 100;

const std::vector<at::Tensor>& own_parameters() {
  static const std::vector<at::Tensor> all = [] {
    std::vector<at::Tensor> made;
    for (size_t i = 0; i < kParameters; ++i) made.push_back(at::ones({4}).set_requires_grad(true));
    return made;
  }();
  return all;
}
std::vector<weft::RRef<at::Tensor>> own_references() {
  std::vector<weft::RRef<at::Tensor>> all;
  for (const at::Tensor& each : own_parameters()) all.emplace_back(each);
  return all;
}
at::Tensor own_sum() { return at::stack(own_parameters()).sum(); }

// What torch's peer does: one context with gradients for all, then steps in it.
double step_microseconds(size_t count) {
  auto parameters = own_references();
  for (auto& each : weft::rpc_sync<own_references>("callee")) parameters.push_back(each);
  weft::optim::DistributedOptimizer<torch::optim::SGD> optimizer(parameters,
                                                                 torch::optim::SGDOptions(1e-3));
  weft::autograd::Context context;
  context.backward({own_sum() + weft::rpc_sync<own_sum>("callee")});
  return median_microseconds(count, [&](size_t) { optimizer.step(context); });
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, {{"optimizer", step_microseconds}});
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(22)) return;
  compare_with_torch(settings, {22, "optimizer", "SGD step, 100 parameters on each of two workers",
                                "us", kTorchSteps, kSteps, times_faster(10)});
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_weft_program(argc, argv, bench::run_caller, bench::measure);
}

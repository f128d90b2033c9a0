// Rows 20 and 21: a training step over two workers against torch RPC's dist_autograd, and what a
// large activation and its gradient cost above the calls that move the same bytes.
// SPDX-License-Identifier: BSD-3-Clause

#include <optional>
#include <string>
#include <vector>

#include <c10/core/GradMode.h>
#include <weft/autograd.h>

#include "support/pair.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kSteps = 1000;
constexpr size_t kTorchSteps = 200;
constexpr size_t kLargeSteps = 20;
constexpr int64_t kLargeFloats = (10 << 20) / 4;  // 10 MiB

at::Tensor multiply(at::Tensor x, at::Tensor w) { return x * w; }

// What torch's peer does: forward over the callee and back, then backward the same way.
double chain_microseconds(size_t count) {
  const at::Tensor x = at::ones({4}).set_requires_grad(true);
  const at::Tensor w = at::ones({4}).set_requires_grad(true);
  return median_microseconds(count, [&](size_t) {
    weft::autograd::Context context;
    context.backward({weft::rpc_sync<multiply>("callee", x, w).sum()});
  });
}

// The callee's layer: a weight as large as its activation.
const at::Tensor& large_weight() {
  static const at::Tensor weight = at::ones({kLargeFloats}).set_requires_grad(true);
  return weight;
}
at::Tensor activation() { return large_weight() * 2; }
at::Tensor plain_activation() {
  const c10::AutoGradMode off(false);
  return activation();
}
at::Tensor kept_gradient;
void plain_gradient(at::Tensor gradient) {
  const c10::AutoGradMode off(false);
  kept_gradient = gradient * 2;
}

double large_step_milliseconds(size_t count) {
  const at::Tensor factor = at::ones({kLargeFloats});
  return 1e-3 * median_microseconds(count, [&](size_t) {
           weft::autograd::Context context;
           // In two statements, as by hand below: in one, the product would live until the backward
           // pass has ended, and malloc might give back what is then freed together.
           const at::Tensor loss = (weft::rpc_sync<activation>("callee") * factor).sum();
           context.backward({loss});
         });
}

// The same bytes and the same arithmetic, by hand.
double large_calls_milliseconds(size_t count) {
  const c10::AutoGradMode off(false);
  const at::Tensor factor = at::ones({kLargeFloats});
  return 1e-3 * median_microseconds(count, [&](size_t) {
           const at::Tensor loss = (weft::rpc_sync<plain_activation>("callee") * factor).sum();
           weft::rpc_sync<plain_gradient>("callee",
                                          at::ones_like(loss).expand({kLargeFloats}) * factor);
         });
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, {{"chain", chain_microseconds},
                              {"large_step", large_step_milliseconds},
                              {"large_calls", large_calls_milliseconds}});
}

void measure_large(const Settings& settings) {
  std::optional<WorkerPair> workers(WorkerPair::weft("default", WorkerPair::Way::kNearest));
  const size_t count = settings.scaled(kLargeSteps);
  const auto series = take_turns(settings.rounds(), {asking(workers, "large_calls", count),
                                                     asking(workers, "large_step", count)});
  print({21, "10 MiB activation and its gradient", "two calls and the same arithmetic", "ms",
         at_most(1.3), series[0], series[1], ""});
}

void measure(const Settings& settings) {
  print_facts();
  if (settings.wants(20)) {
    compare_with_torch(settings, {20, "chain", "forward and backward of 4 floats over two workers",
                                  "us", kTorchSteps, kSteps, times_faster(10)});
  }
  if (settings.wants(21)) measure_large(settings);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_weft_program(argc, argv, bench::run_caller, bench::measure);
}

// Rows 18 and 19: what a remote reference costs above the plain call, and against torch RPC's.
// SPDX-License-Identifier: BSD-3-Clause

#include <optional>
#include <string>
#include <vector>

#include <weft/rref.h>

#include "support/pair.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kCalls = 2000;
constexpr size_t kTorchCycles = 300;

int64_t increment(int64_t value) { return value + 1; }

struct Counter {
  int64_t value = 0;
  int64_t add(int64_t n) { return value += n; }
};

double plain_microseconds(size_t count) {
  return median_microseconds(count, [](size_t) { weft::rpc_sync<increment>("callee", 1); });
}

double method_microseconds(size_t count) {
  const auto counter = weft::remote<Counter>("callee");
  return median_microseconds(count, [&](size_t) { counter.rpc_sync<&Counter::add>(1); });
}

double fetch_microseconds(size_t count) {
  return median_microseconds(count, [](size_t) { weft::remote<increment>("callee", 1).to_here(); });
}

// What torch's peer does: a reference per cycle, to the sum of two small tensors.
double cycles_per_second(size_t count) {
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  const auto start = Clock::now();
  for (size_t i = 0; i < count; ++i) weft::remote<add>("callee", a, b).to_here();
  return 1e6 * static_cast<double>(count) / microseconds_since(start);
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, {{"plain", plain_microseconds},
                              {"method", method_microseconds},
                              {"fetch", fetch_microseconds},
                              {"churn", cycles_per_second}});
}

void measure_overhead(const Settings& settings) {
  std::optional<WorkerPair> workers(WorkerPair::weft("default", WorkerPair::Way::kNearest));
  const size_t count = settings.scaled(kCalls);
  const auto series = take_turns(settings.rounds(),
                                 {asking(workers, "plain", count), asking(workers, "method", count),
                                  asking(workers, "fetch", count)});
  const char* plain = "plain rpc_sync, int64";
  print(
      {18, "method call through a reference", plain, "us", at_most(1.1), series[0], series[1], ""});
  print({18, "remote and to_here", plain, "us", at_most(2.2), series[0], series[2], ""});
}

void measure(const Settings& settings) {
  print_facts();
  if (settings.wants(18)) measure_overhead(settings);
  if (settings.wants(19)) {
    compare_with_torch(settings,
                       {19, "churn", "remote(add of 4 floats) and to_here, one after the other",
                        "cycles/s", kTorchCycles, kCalls, at_least(10)});
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_weft_program(argc, argv, bench::run_caller, bench::measure);
}

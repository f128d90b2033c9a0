// Row 16 over TCP: the same work given to torch RPC. Its agent and its callee are C++ (the callee
// runs a builtin operator and never takes Python's lock); only the loop that calls is Python.
// SPDX-License-Identifier: BSD-3-Clause

#include <optional>
#include <string>
#include <vector>

#include "support/pair.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kOutstanding = 200;        // on both sides
constexpr int64_t kLargeFloats = 16 << 20;  // 64 MiB

constexpr char kAnchor[] = "torch RPC over TCP";

template <auto kFunction>
double large_milliseconds(size_t count) {
  const at::Tensor x = at::ones({kLargeFloats});
  return 1e-3 * median_microseconds(count, [&](size_t) { weft::rpc_sync<kFunction>("callee", x); });
}

double add_microseconds(size_t count) {
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  return median_microseconds(count, [&](size_t) { weft::rpc_sync<add>("callee", a, b); });
}

double adds_per_second(size_t count) {
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  return pipelined_rate(count, kOutstanding, [&] { return weft::rpc_async<add>("callee", a, b); });
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, {{"sync", add_microseconds},
                              {"async", adds_per_second},
                              {"neg", large_milliseconds<neg>},
                              {"positive", large_milliseconds<same>}});
}

struct Comparison {
  std::string command;  // both callers understand it
  std::string what;
  std::string unit;
  size_t torch_calls;
  size_t weft_calls;
  Bar bar;
};

const std::vector<Comparison>& comparisons() {
  static const std::vector<Comparison> all{
      {"sync", "sync add of 4 floats", "us", 300, 2000, times_faster(10)},
      {"async", "async add of 4 floats, 200 outstanding", "calls/s", 2000, 50'000, at_least(40)},
      {"neg", "64 MiB round trip, neg", "ms", 3, 3, times_faster(2.3)},
      {"positive", "64 MiB round trip, argument returned", "ms", 3, 3, times_faster(2.3)},
  };
  return all;
}

// Whichever of torch's two channels does better is the anchor: one is for small tensors, the other
// for large ones.
void compare(const Settings& settings, const Comparison& c, WorkerPair& basic, WorkerPair& parallel,
             std::optional<WorkerPair>& workers) {
  const size_t torch_calls = settings.scaled(c.torch_calls);
  const auto series = take_turns(settings.rounds(),
                                 {[&] { return basic.caller().measure(c.command, torch_calls); },
                                  [&] { return parallel.caller().measure(c.command, torch_calls); },
                                  asking(workers, c.command, settings.scaled(c.weft_calls))});
  const bool more_is_better = c.unit == "calls/s";
  const bool basic_wins = (median(series[0]) > median(series[1])) == more_is_better;
  print({16, c.what, kAnchor, c.unit, c.bar, series[basic_wins ? 0 : 1], series[2],
         std::string("torch RPC's better channel: ") + (basic_wins ? "basic" : "mpt_uv")});
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(16)) return;
  if (!torch_rpc_is_installed()) {
    print_not_measured(16, "against torch RPC over TCP", "python3-torch missing",
                       Absence::kAllowed);
    return;
  }
  WorkerPair basic = WorkerPair::torch(settings.scripts, "basic");
  WorkerPair parallel = WorkerPair::torch(settings.scripts, "mpt_uv");
  std::optional<WorkerPair> workers;
  if (!settings.anchors_only) workers.emplace(WorkerPair::weft("default"));
  for (const Comparison& c : comparisons()) compare(settings, c, basic, parallel, workers);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_weft_program(argc, argv, bench::run_caller, bench::measure);
}

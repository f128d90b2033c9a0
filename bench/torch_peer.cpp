// Row 16, over TCP and through shared memory: the same work given to torch RPC. Its agent and its
// callee are C++ (the callee runs a builtin operator and never takes Python's lock); only the loop
// that calls is Python.
// SPDX-License-Identifier: BSD-3-Clause

#include <array>
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

// Two channels of torch RPC, of which one is for small tensors and the other for large ones, and
// what Weft is to reach beside the better one.
struct Ways {
  std::string anchor;
  std::array<std::string, 2> channels;
  WorkerPair::Way weft;
  std::vector<Comparison> comparisons;
};

Ways over_tcp() {
  return {"torch RPC over TCP",
          {"basic", "mpt_uv"},
          WorkerPair::Way::kTcp,
          {
              {"sync", "sync add of 4 floats", "us", 300, 2000, times_faster(10)},
              {"async", "async add of 4 floats, 200 outstanding", "calls/s", 2000, 50'000,
               at_least(40)},
              {"neg", "64 MiB round trip, neg", "ms", 3, 3, times_faster(2.3)},
              {"positive", "64 MiB round trip, argument returned", "ms", 3, 3, times_faster(2.3)},
          }};
}

Ways through_memory() {
  return {"torch RPC through shared memory",
          {"shm/basic", "shm/cma"},
          WorkerPair::Way::kMemory,
          {
              {"sync", "sync add of 4 floats, same host", "us", 300, 2000, times_faster(50)},
              {"async", "async add of 4 floats, same host", "calls/s", 2000, 50'000, at_least(40)},
              {"neg", "64 MiB round trip, neg, same host", "ms", 3, 6, times_faster(12)},
              {"positive", "64 MiB round trip, same host", "ms", 3, 6, times_faster(12)},
          }};
}

void compare(const Settings& settings, const Ways& ways, const Comparison& c, WorkerPair& first,
             WorkerPair& second, std::optional<WorkerPair>& workers) {
  const size_t torch_calls = settings.scaled(c.torch_calls);
  // Torch's shared memory polls, also when nobody calls, and would take the processors of the
  // others.
  const auto ask = [&](WorkerPair& torch) {
    return [&torch, &c, torch_calls] {
      torch.thaw();
      const double value = torch.caller().measure(c.command, torch_calls);
      torch.freeze();
      return value;
    };
  };
  const auto series = take_turns(
      settings.rounds(),
      {ask(first), ask(second), asking(workers, c.command, settings.scaled(c.weft_calls))});
  const bool more_is_better = c.unit == "calls/s";
  const bool first_wins = (median(series[0]) > median(series[1])) == more_is_better;
  print({16, c.what, ways.anchor, c.unit, c.bar, series[first_wins ? 0 : 1], series[2],
         "torch RPC's better channel: " + ways.channels[first_wins ? 0 : 1]});
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(16)) return;
  if (!torch_rpc_is_installed()) {
    print_not_measured(16, "against torch RPC", "python3-torch missing", Absence::kAllowed);
    return;
  }
  for (const Ways& ways : {over_tcp(), through_memory()}) {
    WorkerPair first = WorkerPair::torch(settings.scripts, ways.channels[0]);
    WorkerPair second = WorkerPair::torch(settings.scripts, ways.channels[1]);
    std::optional<WorkerPair> workers;
    if (!settings.anchors_only) workers.emplace(WorkerPair::weft("default", ways.weft));
    for (const Comparison& c : ways.comparisons) compare(settings, ways, c, first, second, workers);
    first.thaw();
    second.thaw();
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_weft_program(argc, argv, bench::run_caller, bench::measure);
}

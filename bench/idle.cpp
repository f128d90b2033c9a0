// Row 13: what a worker burns while nobody calls, its connections open and spinning enabled.
// SPDX-License-Identifier: BSD-3-Clause

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/pair.h"
#include "support/program.h"
#include "support/raw_tcp.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kCallsBefore = 2000;
constexpr size_t kRounds = 3;
constexpr char kSpin[] = "100";

double nop_microseconds(size_t count) {
  return median_microseconds(count, [](size_t) { weft::rpc_sync<nop>("callee"); });
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, {{"nop", nop_microseconds}});
}

// Has the caller make some calls, then watches both for a while. Percent of a core, the worse one.
double idle_percent(Child& caller, const std::string& call, Child& callee,
                    std::chrono::seconds window) {
  caller.measure(call, kCallsBefore);
  const double caller_before = caller.cpu_seconds(), callee_before = callee.cpu_seconds();
  const auto start = Clock::now();
  std::this_thread::sleep_for(window);  // this is what is measured, not a wait for something
  const double used =
      std::max(caller.cpu_seconds() - caller_before, callee.cpu_seconds() - callee_before);
  return 100 * used / (1e-6 * microseconds_since(start));
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(13)) return;
  const std::chrono::seconds window(settings.quick ? 1 : 3);
  AnchorPair raw("ping_server", "ping_caller");
  std::optional<WorkerPair> workers;
  if (!settings.anchors_only) workers.emplace(WorkerPair::weft(kSpin, WorkerPair::Way::kNearest));
  Measurement weft_idle;
  if (workers)
    weft_idle = [&] { return idle_percent(workers->caller(), "nop", workers->callee(), window); };

  const auto series = take_turns(
      settings.quick ? 1 : kRounds,
      {[&] { return idle_percent(raw.caller(), "blocking", raw.callee(), window); }, weft_idle});

  print({13,
         "idle CPU per process, spinning enabled",
         "raw blocking TCP, asleep",
         "% of a core",
         value_at_most(0.5),
         series[0],
         series[1],
         {}});
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run_program(argc, argv,
                            {{"ping_server", bench::run_ping_server},
                             {"ping_caller", bench::run_ping_caller},
                             {"weft_callee", bench::run_weft_callee},
                             {"weft_caller", bench::run_caller}},
                            bench::measure);
}

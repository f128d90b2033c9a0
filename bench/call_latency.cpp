// Rows 1, 2, 3 and 14: what one blocking call costs above the round trip it is made of.
// SPDX-License-Identifier: BSD-3-Clause

#include <sched.h>

#include <optional>
#include <string>
#include <vector>

#include "support/pair.h"
#include "support/program.h"
#include "support/raw_tcp.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/weft_worker.h"

namespace bench {
namespace {

constexpr size_t kCalls = 2000;
constexpr char kSpin[] = "100";
constexpr char kNoSpin[] = "0";
constexpr char kBlockingAnchor[] = "raw blocking TCP ping-pong";
constexpr char kSpinningAnchor[] = "raw spinning TCP ping-pong";

double nop_microseconds(size_t count) {
  return median_microseconds(count, [](size_t) { weft::rpc_sync<nop>("callee"); });
}

double add_microseconds(size_t count) {
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  return median_microseconds(count, [&](size_t) { weft::rpc_sync<add>("callee", a, b); });
}

void run_caller(const std::vector<std::string>& arguments) {
  run_weft_caller(arguments, {{"nop", nop_microseconds}, {"add", add_microseconds}});
}

// One kind of call held against the anchor of its case.
struct Goal {
  int row;
  std::string call;  // the weft caller's command
  std::string what;
  Bar bar;
};

// One way of waiting, for the anchor and for weft.
struct Case {
  std::string ping;  // the anchor's command
  std::string anchor;
  std::string spin;
  std::optional<int> cpu;  // of all processes
  std::vector<Goal> goals;
};

void measure_case(const Settings& settings, const Case& c) {
  std::vector<Goal> goals;
  for (const Goal& goal : c.goals) {
    if (settings.wants(goal.row)) goals.push_back(goal);
  }
  if (goals.empty()) return;

  const size_t count = settings.scaled(kCalls);
  AnchorPair raw("ping_server", "ping_caller", c.cpu);
  std::optional<WorkerPair> workers;
  if (!settings.anchors_only) workers.emplace(WorkerPair::weft(c.spin, c.cpu));
  std::vector<Measurement> turns{[&] { return raw.caller().measure(c.ping, count); }};
  for (const Goal& goal : goals) turns.push_back(asking(workers, goal.call, count));

  const auto series = take_turns(settings.rounds(), turns);

  for (size_t i = 0; i < goals.size(); ++i) {
    print(
        {goals[i].row, goals[i].what, c.anchor, "us", goals[i].bar, series[0], series[i + 1], {}});
  }
}

int first_allowed_cpu() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int cpu = 0;
  while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(static_cast<size_t>(cpu), &allowed)) ++cpu;
  return cpu;
}

void measure(const Settings& settings) {
  print_facts();
  const Goal nop_blocking{1, "nop", "sync nop over TCP, no spinning", at_most(1.25)};
  const Goal add_blocking{3, "add", "sync add of 4 floats over TCP, no spinning", at_most(2.0)};
  const Goal nop_spinning{2, "nop", "sync nop over TCP, spinning", at_most(1.35)};
  const Goal add_spinning{3, "add", "sync add of 4 floats over TCP, spinning", at_most(1.8)};
  const Goal one_core{14, "nop", "both on one core: sync nop, no spinning", at_most(1.5)};
  // Where there is one processor, whoever spins keeps the other from answering.
  const Goal one_core_spin{14, "nop", "both on one core: sync nop, spinning asked for",
                           at_most(1.5)};

  const int cpu = first_allowed_cpu();
  measure_case(settings, {"blocking", kBlockingAnchor, kNoSpin, {}, {nop_blocking, add_blocking}});
  measure_case(settings, {"spinning", kSpinningAnchor, kSpin, {}, {nop_spinning, add_spinning}});
  measure_case(settings, {"blocking", kBlockingAnchor, kNoSpin, cpu, {one_core}});
  measure_case(settings, {"blocking", kBlockingAnchor, kSpin, cpu, {one_core_spin}});
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

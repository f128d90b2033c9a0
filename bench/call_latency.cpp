// Rows 1, 2, 3 and 14: what one blocking call costs above the round trip it is made of.
// SPDX-License-Identifier: BSD-3-Clause

#include <sched.h>

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>
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

// Where the two processes of a pair run. Left to itself the scheduler sometimes puts the two of one
// pair on one processor and those of the other on two, and then the ratio shows nothing else.
enum class Placement : uint8_t { kApart, kOnOneCpu };

// One way of waiting, for the anchor and for weft.
struct Case {
  std::string ping;  // the anchor's command
  std::string anchor;
  std::string spin;
  Placement placement;
  std::vector<Goal> goals;
};

std::vector<int> allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

template <typename Pair>
void place_apart(Pair& pair, const std::vector<int>& cpus) {
  pair.caller().move_to(cpus[0]);
  pair.callee().move_to(cpus[1]);
}

std::string rounded(double value) {
  std::ostringstream text;
  text << std::setprecision(3) << value;
  return text.str();
}

void measure_case(const Settings& settings, const Case& c) {
  std::vector<Goal> goals;
  for (const Goal& goal : c.goals) {
    if (settings.wants(goal.row)) goals.push_back(goal);
  }
  if (goals.empty()) return;

  const size_t count = settings.scaled(kCalls);
  const std::vector<int> cpus = allowed_cpus();
  const bool apart = c.placement == Placement::kApart && cpus.size() > 1;
  const std::optional<int> cpu = apart ? std::nullopt : std::optional(cpus.front());
  AnchorPair raw("ping_server", "ping_caller", cpu);
  std::optional<WorkerPair> workers;
  if (!settings.anchors_only) workers.emplace(WorkerPair::weft(c.spin, WorkerPair::Way::kTcp, cpu));
  if (apart) place_apart(raw, cpus);
  if (apart && workers) place_apart(*workers, cpus);
  std::vector<Measurement> turns{[&] { return raw.caller().measure(c.ping, count); }};
  for (const Goal& goal : goals) turns.push_back(asking(workers, goal.call, count));
  const bool adds =
      std::any_of(goals.begin(), goals.end(), [](const Goal& goal) { return goal.call == "add"; });
  if (adds) turns.push_back([&] { return raw.caller().measure(c.ping + "+add", count); });

  const auto series = take_turns(settings.rounds(), turns);

  for (size_t i = 0; i < goals.size(); ++i) {
    const std::string note =
        goals[i].call == "add"
            ? "the anchor, if its server adds: " + rounded(median(series.back())) + " us"
            : "";
    print({goals[i].row, goals[i].what, c.anchor, "us", goals[i].bar, series[0], series[i + 1],
           note});
  }
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

  measure_case(
      settings,
      {"blocking", kBlockingAnchor, kNoSpin, Placement::kApart, {nop_blocking, add_blocking}});
  measure_case(
      settings,
      {"spinning", kSpinningAnchor, kSpin, Placement::kApart, {nop_spinning, add_spinning}});
  measure_case(settings, {"blocking", kBlockingAnchor, kNoSpin, Placement::kOnOneCpu, {one_core}});
  measure_case(settings,
               {"blocking", kBlockingAnchor, kSpin, Placement::kOnOneCpu, {one_core_spin}});
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

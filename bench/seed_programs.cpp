// Row 17: whole programs, as a user writes them, against the same programs on torch RPC.
// SPDX-License-Identifier: BSD-3-Clause

#include <string>
#include <vector>

#include "support/child.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"

namespace bench {
namespace {

constexpr size_t kTorchSteps = 3000;
constexpr size_t kWeftSteps = 30'000;

// Both end with a line that has the rate alone: "steps per second: NUMBER".
double steps_per_second(const std::vector<std::string>& command) {
  const std::string wanted = "steps per second: ";
  Child program({command, {{"GLOG_minloglevel", "2"}}, {}});
  for (;;) {
    const std::string line = program.read_line();
    if (line.rfind(wanted, 0) == 0) return std::stod(line.substr(wanted.size()));
  }
}

std::vector<std::string> torch_cartpole(const Settings& settings, size_t steps) {
  return {kPython, settings.scripts + "/torch_cartpole.py", "--steps", std::to_string(steps)};
}

std::vector<std::string> weft_cartpole(const Settings& settings, size_t steps) {
  return {settings.examples + "/cartpole", "--world-size", "2", "--steps", std::to_string(steps)};
}

void measure(const Settings& settings) {
  print_facts();
  if (!settings.wants(17)) return;
  if (!torch_rpc_is_installed()) {
    print_not_measured(17, "programs against torch RPC", "python3-torch missing",
                       Absence::kAllowed);
    return;
  }
  const size_t torch_steps = settings.scaled(kTorchSteps), weft_steps = settings.scaled(kWeftSteps);
  std::vector<Measurement> turns{
      [&] { return steps_per_second(torch_cartpole(settings, torch_steps)); }, nullptr};
  if (!settings.anchors_only)
    turns[1] = [&] { return steps_per_second(weft_cartpole(settings, weft_steps)); };
  const auto series = take_turns(settings.quick ? 1 : 5, turns);
  print({17, "cartpole, one observer", "the same program on torch RPC", "steps/s", at_least(20),
         series[0], series[1], ""});
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_program(argc, argv, {}, bench::measure); }

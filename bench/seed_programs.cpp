// Rows 17, 23 and 24: whole programs as a user writes them, against the same ones on torch RPC or
// in one process.
// SPDX-License-Identifier: BSD-3-Clause

#include <string>
#include <utility>
#include <vector>

#include "support/child.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/torch_rpc.h"

namespace bench {
namespace {

// The same program twice. Both take how much to do as their last argument.
struct ProgramPair {
  int row;
  std::string what, anchor, unit;
  Bar bar;
  std::vector<std::string> anchor_command, weft_command;
  size_t anchor_count, weft_count;
};

// Programs end with a line that has the rate alone: "steps per second: NUMBER".
double rate_of(std::vector<std::string> command, size_t count) {
  const std::string wanted = " per second: ";
  command.push_back(std::to_string(count));
  Child program({std::move(command), {{"GLOG_minloglevel", "2"}}, {}});
  for (;;) {
    const std::string line = program.read_line();
    const size_t at = line.find(wanted);
    if (at != std::string::npos) return std::stod(line.substr(at + wanted.size()));
  }
}

void compare(const Settings& settings, const ProgramPair& pair) {
  if (pair.anchor_command.front() == python() && !torch_rpc_is_installed()) {
    print_not_measured(pair.row, pair.what, "python3-torch missing", Absence::kAllowed);
    return;
  }
  const auto running = [&settings](const std::vector<std::string>& command, size_t count) {
    return [&command, count = settings.scaled(count)] { return rate_of(command, count); };
  };
  std::vector<Measurement> turns{running(pair.anchor_command, pair.anchor_count), nullptr};
  if (!settings.anchors_only) turns[1] = running(pair.weft_command, pair.weft_count);
  const auto series = take_turns(settings.quick ? 1 : 5, turns);
  print({pair.row, pair.what, pair.anchor, pair.unit, pair.bar, series[0], series[1], ""});
}

void measure(const Settings& settings) {
  print_facts();
  const std::string on_torch = "the same program on torch RPC";
  const std::vector<ProgramPair> pairs{
      {.row = 17,
       .what = "cartpole, one observer",
       .anchor = on_torch,
       .unit = "steps/s",
       .bar = at_least(30),
       .anchor_command = {python(), settings.scripts + "/torch_cartpole.py", "--steps"},
       .weft_command = {settings.examples + "/cartpole", "--world-size", "2", "--steps"},
       .anchor_count = 3000,
       .weft_count = 30'000},
      {.row = 23,
       .what = "model-parallel RNN of the tutorial",
       .anchor = "the same model in one process",
       .unit = "iterations/s",
       .bar = at_least(0.92),
       .anchor_command = {settings.examples + "/rnn", "--local", "--iterations"},
       .weft_command = {settings.examples + "/rnn", "--iterations"},
       .anchor_count = 2000,
       .weft_count = 2000},
      {.row = 24,  // of each trainer
       .what = "parameter server and data parallel trainers of the tutorial",
       .anchor = on_torch,
       .unit = "iterations/s",
       .bar = at_least(9),
       .anchor_command = {python(), settings.scripts + "/torch_hybrid.py", "--iterations"},
       .weft_command = {settings.examples + "/hybrid", "--unordered", "--iterations"},
       .anchor_count = 1000,
       .weft_count = 1000},
  };
  for (const ProgramPair& pair : pairs) {
    if (settings.wants(pair.row)) compare(settings, pair);
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_program(argc, argv, {}, bench::measure); }

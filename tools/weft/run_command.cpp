// The command line of `weft run`.
// SPDX-License-Identifier: BSD-3-Clause

#include "run_command.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "process/worker_group.h"

namespace weft::tool {
namespace {

constexpr double kLongestGraceSeconds = 24 * 60 * 60;

// The program is no option that CLI11 knows of, so it has to be told how the command is used.
class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: weft run -n N [OPTIONS] [--] program [arguments...]\n";
  }
};

std::string check_workers(const std::string& text) {
  int workers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), workers);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && workers >= 1 ? "" : fmt::format("not a number of workers: '{}'", text);
}

std::string check_grace(const std::string& text) {
  double seconds = 0;
  const bool is_number = CLI::detail::lexical_cast(text, seconds);
  return is_number && seconds >= 0 && seconds <= kLongestGraceSeconds
             ? ""
             : fmt::format("not a number of seconds: '{}'", text);
}

}  // namespace

RunCommand::RunCommand(CLI::App& app)
    : command_(app.add_subcommand("run", "Start the workers of a program on this machine")) {
  command_->formatter(std::make_shared<RunFormatter>());
  command_->add_option("-n", workers_, "How many workers to start")
      ->check(check_workers, "")
      ->type_name("N");
  command_
      ->add_option("--grace", grace_seconds_,
                   "How long workers may take to end before they are killed (5)")
      ->check(check_grace, "")
      ->type_name("SECONDS");
  command_->add_flag("--no-prefix", no_prefix_, "Print lines without the rank they come from");
  command_->footer(
      "When a worker fails the others are ended, and its exit status becomes that of this "
      "command.\n"
      "Interrupting once passes the signal on to the workers, twice kills them.");
}

void RunCommand::take_program(std::vector<std::string>& command_line) {
  if (command_line.empty() || command_line.front() != command_->get_name()) return;
  size_t options_end = 1;
  while (options_end < command_line.size() && command_line[options_end].starts_with('-') &&
         command_line[options_end] != "--") {
    options_end += takes_value(command_line[options_end]) ? 2 : 1;
  }
  options_end = std::min(options_end, command_line.size());
  size_t program = options_end;
  if (program < command_line.size() && command_line[program] == "--") ++program;
  program_.assign(command_line.begin() + static_cast<ptrdiff_t>(program), command_line.end());
  command_line.resize(options_end);
}

int RunCommand::run() const {
  if (workers_ == 0)
    throw CLI::ValidationError("the number of workers is missing: give -n N before the program");
  if (program_.empty()) throw CLI::ValidationError("the program to run is missing");
  process::WorkerGroupOptions options;
  options.command = {program_.front(), program_};
  options.workers = workers_;
  options.grace =
      std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(grace_seconds_));
  options.prefix = no_prefix_ ? process::LinePrefix::kNone : process::LinePrefix::kEveryLine;
  return process::WorkerGroup(std::move(options)).run();
}

// `-n 4`, but not `-n4` or `--grace=1`: those carry their value with them.
bool RunCommand::takes_value(const std::string& option) const {
  const CLI::Option* known = command_->get_option_no_throw(option);
  return known != nullptr && known->get_items_expected_max() > 0;
}

}  // namespace weft::tool

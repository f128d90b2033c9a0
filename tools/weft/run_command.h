// `weft run`: starts the workers of a program on this machine.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace weft::tool {

class RunCommand {
 public:
  // Adds the command to `app`, which fills in this object when it parses.
  explicit RunCommand(CLI::App& app);
  RunCommand(const RunCommand&) = delete;
  RunCommand& operator=(const RunCommand&) = delete;

  // Takes the program to run and all that follows it off the command line: nothing there is an
  // option of ours, however much it looks like one. To be called before `app` parses the rest.
  void take_program(std::vector<std::string>& command_line);

  bool is_chosen() const { return command_->parsed(); }

  // Requires is_chosen(). Returns the exit code; throws CLI::ParseError if the command line was
  // incomplete.
  int run() const;

 private:
  bool takes_value(const std::string& option) const;

  CLI::App* command_;
  std::vector<std::string> program_;  // and its arguments
  int workers_ = 0;
  double grace_seconds_ = 5;
  bool no_prefix_ = false;
};

}  // namespace weft::tool

// What every benchmark executable does: parse its options, then measure, or play a role in the
// measurement that another process of the same executable runs.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace bench {

struct Settings {
  std::set<int> rows;  // empty: all
  bool quick = false;  // few short rounds: does it work, not how fast is it
  bool anchors_only = false;
  std::string scripts;   // where torch_*.py are
  std::string examples;  // where the built examples are

  bool wants(int row) const { return rows.empty() || rows.contains(row); }
  size_t rounds() const { return quick ? 3 : 9; }
  size_t scaled(size_t count) const { return quick ? count / 10 + 1 : count; }
};

using Role = std::function<void(const std::vector<std::string>& arguments)>;

/// main() of a benchmark. Without --role it runs `measure`; failures go to stderr and exit code 1.
int run_program(int argc, char** argv, const std::map<std::string, Role>& roles,
                const std::function<void(const Settings&)>& measure);

// The role's side of Child.

/// Prints one line for Child::read_line.
void announce(const std::string& line);

/// Does something `count` times and returns the number Child::measure waits for.
using Command = std::function<double(size_t count)>;

/// Answers commands until the input ends.
void answer_commands(const std::map<std::string, Command>& commands);

}  // namespace bench

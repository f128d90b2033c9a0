// A process the benchmark started: commands go to its input, answers come from its output.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bench {

struct ChildOptions {
  std::vector<std::string> command;                // the program's path first
  std::map<std::string, std::string> environment;  // set on top of ours
  std::optional<int> cpu;  // pinned before the program starts, so all its threads are
};

/// One process, from start to exit. It is killed with its parent and ends by itself when its input
/// ends. Every failure (it died, it stays silent, it answers nonsense) throws std::runtime_error.
class Child {
 public:
  explicit Child(const ChildOptions& options);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next line the child prints.
  std::string read_line();

  /// Has the child do `what` `count` times and print one number.
  double measure(const std::string& what, size_t count);

  /// Tells the child to end; the destructor waits for it. Peers are all told before one is joined.
  void close_input();

  /// Moves all its threads, and those they start, to one processor. Unlike ChildOptions::cpu the
  /// program has already looked at how many there are.
  void move_to(int cpu);

  /// Stops it, and lets it go on.
  void freeze();
  void thaw();

  /// Processor time all its threads used so far, in seconds.
  double cpu_seconds() const;

 private:
  std::string name_;
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string unread_;
};

/// The command that runs this very executable in another role.
std::vector<std::string> role_command(const std::string& role, std::vector<std::string> arguments);

}  // namespace bench

// Processes that start quickly: forked from one that has loaded everything and has no threads.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

namespace weft::neighbours {

class Nursery {
 public:
  /// What a new process does. It ends after that.
  using Role = void (*)(const std::string& arguments);

  /// To be called before the process has threads.
  explicit Nursery(Role role);
  ~Nursery();
  Nursery(const Nursery&) = delete;
  Nursery& operator=(const Nursery&) = delete;

  pid_t start(const std::string& arguments);
  /// For new processes: a line for the process that has the nursery.
  static void report(const std::string& line);
  /// The line that the process has reported; nothing if none came in time.
  std::optional<std::string> heard(pid_t process, std::chrono::seconds limit);

 private:
  void serve(Role role);

  int commands_[2];
  int reports_[2];
  pid_t nurse_ = -1;
  std::map<pid_t, std::string> heard_;
};

}  // namespace weft::neighbours

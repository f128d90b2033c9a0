// A group of processes on one host, the first of which answers commands and tells the others.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/temporary_directory.h"
#include "support/child.h"
#include "support/samples.h"

namespace bench {

class Members {
 public:
  /// This executable in the role `role`, which calls run_members().
  static Members of_role(const std::string& role, size_t count);
  /// A program that takes the number of members and the rendezvous as arguments.
  static Members of_program(std::vector<std::string> command, size_t count);

  /// Has the first member do `what` `count` times, or for so long, and print one number.
  Measurement measuring(const std::string& what, size_t count);

 private:
  Members() = default;
  void start(std::vector<std::string> command, size_t count);

  std::unique_ptr<weft::base::TemporaryDirectory> directory_ =
      std::make_unique<weft::base::TemporaryDirectory>("weft-bench");
  std::unique_ptr<Child> first_;
};

/// A role: this process, which must have started nothing yet, and copies of it are the members.
/// `arguments` are the number of members and the rendezvous. The first announces "ready".
using BeMember = std::function<void(size_t rank, size_t members, const std::string& rendezvous)>;
void run_members(const std::vector<std::string>& arguments, const BeMember& be_member);

}  // namespace bench

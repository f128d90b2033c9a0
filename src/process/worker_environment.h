// The environment variables of the workers of one group.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/temporary_directory.h"

namespace weft::process {

// This process's environment plus rank, world size and a place to meet: WEFT_RENDEZVOUS for Weft,
// MASTER_ADDR and MASTER_PORT for process groups. A place that is set already is kept, so that
// several groups can join into one world. The place exists as long as this object.
class WorkerEnvironment {
 public:
  explicit WorkerEnvironment(int workers);

  // As execve takes it: NAME=value.
  std::vector<std::string> of_rank(int rank) const;

 private:
  void set_unless_present(const char* name, const std::string& value);

  int workers_;
  std::optional<base::TemporaryDirectory> meeting_place_;
  std::vector<std::string> shared_;
};

}  // namespace weft::process

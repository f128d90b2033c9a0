// The environment variables of the workers that one launcher starts.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/temporary_directory.h"

namespace weft::process {

// This process's environment, plus rank and world size, plus a place to meet: WEFT_RENDEZVOUS for
// Weft, MASTER_ADDR and MASTER_PORT for torch's own process groups (c10d). If one of these three is
// set already, the workers get that value. RANK and WORLD_SIZE always count the workers of this
// launcher. A directory made for WEFT_RENDEZVOUS exists as long as this object.
class WorkerEnvironment {
 public:
  explicit WorkerEnvironment(int workers);

  // In the form that execve needs: NAME=value.
  std::vector<std::string> of_rank(int rank) const;

 private:
  void set_unless_present(const char* name, const std::string& value);

  int workers_;
  std::optional<base::TemporaryDirectory> meeting_place_;
  std::vector<std::string> shared_;
};

}  // namespace weft::process

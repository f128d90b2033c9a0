// The name and rank that this process is to have in which group, and where the group meets.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <string>

namespace weft::rendezvous {

struct Invitation {
  std::string method;  // as Options::init_method; never empty
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{60'000};
};

/// Fills in what is not given from the environment: RANK, WORLD_SIZE, WEFT_RENDEZVOUS.
/// Throws kInvalidArgument for what is missing or wrong, naming the variable.
Invitation read_invitation(const std::string& method, int rank, int world_size,
                           std::chrono::milliseconds timeout);

}  // namespace weft::rendezvous

// The rank of this process, the size of its group, and where the group meets.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <string>

namespace weft::rendezvous {

struct Invitation {
  std::string method;  // like Options::init_method, but never empty
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{60'000};
};

/// Takes values that are not given from the environment: RANK, WORLD_SIZE, WEFT_RENDEZVOUS. Throws
/// kInvalidArgument, naming the variable, if one is missing or wrong.
Invitation read_invitation(const std::string& method, int rank, int world_size,
                           std::chrono::milliseconds timeout);

}  // namespace weft::rendezvous

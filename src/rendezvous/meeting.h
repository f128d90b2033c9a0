// Where the members of a group find each other: env://, tcp://host:port, file:///path.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <string>

#include "rendezvous/group.h"

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

/// Tells the others about `self` and waits for all of them. Throws kUnavailable naming the ranks
/// that did not come, kInvalidArgument for names that are not unique.
Group meet(const Invitation& invitation, const Member& self);

}  // namespace weft::rendezvous

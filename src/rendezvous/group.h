// The members of a group.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/worker_info.h"

namespace weft::rendezvous {

struct Member {
  WorkerInfo info;
  std::string address;
  uint64_t incarnation = 0;  // differs between two processes that had the same name
};

struct Group {
  uint64_t token = 0;  // a secret; a peer that knows it was at the same rendezvous
  int self = 0;        // index into members; members[i].info.id == i
  std::vector<Member> members;
};

/// Throws kInvalidArgument unless `name` has 1 to 127 of the characters A-Z a-z 0-9 _ : -
void check_name(const std::string& name);

/// Throws kInvalidArgument if two members have the same name.
void check_names_unique(const Group& group);

/// A random number that nobody can guess.
uint64_t random_id();

}  // namespace weft::rendezvous

// Processes as the reference protocol names them, and their ranks in the group.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "rpc/runtime.h"
#include "rref/session_message.h"

namespace weft::rref {

inline Worker self_of(const rpc::Runtime& runtime) { return runtime.self().incarnation; }

inline Worker worker_of(const rpc::Runtime& runtime, int rank) {
  return runtime.group.members.at(static_cast<size_t>(rank)).incarnation;
}

/// -1: nobody in this group.
inline int rank_of(const rpc::Runtime& runtime, Worker worker) {
  for (const rpc::Member& member : runtime.group.members) {
    if (member.incarnation == worker) return member.info.id;
  }
  return -1;
}

}  // namespace weft::rref

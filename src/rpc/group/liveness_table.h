// Which members of the group are gone, judged from signs. A deterministic core: told the time.
//
// A member is gone when its address refuses connections, when another process answers there, or
// when it has given no sign of life for `patience` while this worker tried to reach it. A member
// that is heard of again is back.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace weft::rpc {

/// An observation of a member.
enum class SignOfLife {
  kHeard,        // accepted a connection and said who it is
  kRefused,      // nobody listens at its address, where a member listens for all its life
  kReplaced,     // another process answers at its address
  kSilent,       // connected, and its heartbeat has stopped
  kUnreachable,  // could not be connected to, or turned the connection away: that may pass
};

class LivenessTable {
 public:
  LivenessTable(size_t members, base::Duration patience) : members_(members), patience_(patience) {}

  enum class Change { kNone, kGone, kBack };
  /// `began`: when the attempt to reach the member began that ended with this sign.
  Change on_sign(int rank, SignOfLife sign, base::Time began, base::Time now, std::string why);

  /// Nothing: the member is not known to be gone.
  const std::optional<std::string>& why_gone(int rank) const {
    return members_.at(static_cast<size_t>(rank)).why_gone;
  }

 private:
  struct Member {
    std::optional<base::Time> unreachable_since;
    std::optional<std::string> why_gone;
  };
  std::vector<Member> members_;
  const base::Duration patience_;
};

}  // namespace weft::rpc

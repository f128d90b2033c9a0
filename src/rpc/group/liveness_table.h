// Which members of the group are gone, judged from signs. A deterministic core: told the time.
//
// A member is gone when its address refuses connections, when another process answers there, or
// when it has given no sign of life for `patience` while this worker tried to reach it; but not
// while a connection to it stands, of which there may be several. A member that is heard of again
// is back.
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
  kHeard,        // accepted a connection and said who it is: that connection stands
  kEnded,        // a connection that stood has ended
  kRefused,      // nobody listens at its address, where a member listens for all its life
  kReplaced,     // another process answers at its address
  kSilent,       // a connection that stood has ended because its heartbeat stopped
  kUnreachable,  // could not be connected to, or turned the connection away: that may pass
};

class LivenessTable {
 public:
  LivenessTable(size_t members, base::Duration patience) : members_(members), patience_(patience) {}

  enum class Change { kNone, kGone, kBack };
  /// `began`: when the attempt to reach the member began that ended with this sign.
  Change on_sign(int rank, SignOfLife sign, base::Time began, base::Time now, std::string why);

  /// That stand.
  size_t connections_to(int rank) const {
    return members_.at(static_cast<size_t>(rank)).connections;
  }
  /// Nothing: the member is not known to be gone.
  const std::optional<std::string>& why_gone(int rank) const {
    return members_.at(static_cast<size_t>(rank)).why_gone;
  }

 private:
  struct Member {
    size_t connections = 0;    // that stand
    base::Time alone_since{};  // when the last of them ended
    // Its address is another's or nobody's: it is gone when the last connection has ended.
    std::optional<std::string> why_leaving;
    std::optional<base::Time> silent_at;  // when another connection's heartbeat had stopped
    std::optional<base::Time> unreachable_since;
    std::optional<std::string> why_gone;
  };
  std::vector<Member> members_;
  const base::Duration patience_;
};

}  // namespace weft::rpc

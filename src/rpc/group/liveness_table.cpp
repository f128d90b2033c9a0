// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/liveness_table.h"

#include <algorithm>
#include <utility>

namespace weft::rpc {

LivenessTable::Change LivenessTable::on_sign(int rank, SignOfLife sign, base::Time began,
                                             base::Time now, std::string why) {
  Member& member = members_.at(static_cast<size_t>(rank));
  if (sign == SignOfLife::kHeard) {
    const bool was_gone = member.why_gone.has_value();
    const size_t connections = member.connections + 1;
    member = {};
    member.connections = connections;
    return was_gone ? Change::kBack : Change::kNone;
  }
  const bool ended = sign == SignOfLife::kEnded || sign == SignOfLife::kSilent;
  if (ended && member.connections > 0 && --member.connections == 0) member.alone_since = now;
  if (member.why_gone) return Change::kNone;
  if (member.connections > 0) {
    if (sign == SignOfLife::kRefused || sign == SignOfLife::kReplaced) member.why_leaving = why;
    if (sign == SignOfLife::kSilent) member.silent_at = now;
    return Change::kNone;
  }
  if (sign == SignOfLife::kEnded) {
    // Alone, the end of a connection says nothing.
    const bool fell_silent = member.silent_at && now - *member.silent_at < patience_;
    if (!member.why_leaving && !fell_silent) return Change::kNone;
    if (member.why_leaving) why = *member.why_leaving;
  }
  if (sign == SignOfLife::kUnreachable) {
    began = std::max(began, member.alone_since);
    const base::Time since = std::min(member.unreachable_since.value_or(began), began);
    member.unreachable_since = since;
    if (now - since < patience_) return Change::kNone;
  }
  member.why_gone = std::move(why);
  return Change::kGone;
}

}  // namespace weft::rpc

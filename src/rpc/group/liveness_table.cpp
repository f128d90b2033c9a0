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
    member = {};
    return was_gone ? Change::kBack : Change::kNone;
  }
  if (member.why_gone) return Change::kNone;
  if (sign == SignOfLife::kUnreachable) {
    const base::Time since = std::min(member.unreachable_since.value_or(began), began);
    member.unreachable_since = since;
    if (now - since < patience_) return Change::kNone;
  }
  member.why_gone = std::move(why);
  return Change::kGone;
}

}  // namespace weft::rpc

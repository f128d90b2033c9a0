// The name of an object that is referred to from other workers.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace weft::detail {

/// Never used twice. Workers appear by incarnation, so a worker that was restarted under its old
/// name never meets an id of its former life.
struct RRefId {
  uint64_t owner = 0;    // incarnation of the worker the object lives on
  uint64_t creator = 0;  // incarnation of the worker that asked for it
  uint64_t epoch = 0;    // of the creator's session with the owner; 0: its own object
  uint64_t serial = 0;   // counted by the creator for each owner, from 1

  friend auto operator<=>(const RRefId&, const RRefId&) = default;
};

struct RRefIdHash {
  size_t operator()(const RRefId& id) const noexcept {
    return std::hash<uint64_t>()(id.owner ^ (id.creator * 31) ^ (id.serial * 0x9e3779b97f4a7c15u));
  }
};

}  // namespace weft::detail

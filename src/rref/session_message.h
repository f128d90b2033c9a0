// The messages of a session: one worker tells another about references, in numbered messages, each
// repeated until it is answered.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <vector>

#include "weft/detail/rref_id.h"

namespace weft::rref {

using detail::RRefId;
/// A process: the incarnation it joined the group with.
using Worker = uint64_t;

struct Step {
  enum class Kind : uint8_t {
    kRegister,       // count me among the holders
    kRegisterEarly,  // the same, of an object whose creation may still be on its way
    kRelease,        // I hold it no more; if I was to create it, I will not
    kAccept,         // my registration of what your reply referred to was granted or refused: stop
                     // holding it for me
  };
  Kind kind = Kind::kRegister;
  RRefId id;

  friend bool operator==(const Step&, const Step&) = default;
};

inline bool registers(const Step& step) {
  return step.kind == Step::Kind::kRegister || step.kind == Step::Kind::kRegisterEarly;
}

struct SessionMessage {
  uint64_t epoch = 0;     // of the session; a later one ends the earlier
  uint64_t sequence = 0;  // from 1 within the epoch; without steps it only renews the lease
  std::vector<Step> steps;
};

struct SessionReply {
  enum class Status : uint8_t {
    kApplied,
    kOver,  // the session has ended: its lease ran out, a later epoch began, or a message is
            // missing; the sender holds nothing of this owner any more
  };
  Status status = Status::kApplied;
  std::vector<uint8_t> granted;  // one per registration, in order: whether the object exists
};

}  // namespace weft::rref

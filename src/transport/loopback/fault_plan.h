// Faults that a loopback connection applies to the frames that pass through it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"

namespace weft::transport {

/// A fault that one frame meets.
struct Fault {
  enum class Kind {
    kDeliver,
    kDropConnection,  // the connection breaks before this frame
    kTruncate,        // half of the frame arrives, then the connection breaks
    kFlip,            // one bit of the frame is inverted
    kDuplicate,       // the frame arrives twice
    kDelay,           // the frame and those after it arrive `delay` later by the network's clock
  };
  Kind kind = Kind::kDeliver;
  base::Duration delay{0};
  size_t bit = 0;  // for kFlip: which, modulo the frame's bits
};

/// A frame about to be delivered.
struct FrameInFlight {
  std::string from;     // if the accepting end sends: the address it listens on; otherwise ""
  std::string to;       // if the connecting end sends: the address it connected to; otherwise ""
  uint64_t connection;  // counted over the whole network
  bool from_connector;  // whether the connecting end sends
  size_t index;         // of the frame in its direction; the hello has 0
  uint8_t kind;         // wire::FrameKind
};

/// Called once for each frame, under the network's lock, so equal sequences of frames give equal
/// faults. If a frame is delayed, frames of other connections overtake it.
using FaultPlan = std::function<Fault(const FrameInFlight&)>;

}  // namespace weft::transport

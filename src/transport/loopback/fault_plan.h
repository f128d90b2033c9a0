// The faults that a loopback connection applies to the frames that pass through it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"

namespace weft::transport {

/// The fate of one frame.
struct Fault {
  enum class Kind {
    kDeliver,
    kDropConnection,  // before this frame: it and all later bytes are lost
    kTruncate,        // half of the frame arrives, then the connection breaks
    kFlip,            // one bit of the frame is inverted
    kDuplicate,       // the frame arrives twice
    kDelay,           // the frame and those behind it arrive after `delay` of the network's clock
  };
  Kind kind = Kind::kDeliver;
  base::Duration delay{0};
  size_t bit = 0;  // for kFlip: which, modulo the frame's bits
};

/// A frame about to be delivered.
struct FrameInFlight {
  std::string from;  // listener address of the sender's side, "" for the connecting end
  std::string to;
  uint64_t connection;  // counted over the whole network
  bool from_connector;  // else from the accepting end
  size_t index;         // of the frame in its direction, 0 is the hello
  uint8_t kind;         // wire::FrameKind
};

/// Asked once a frame, under the network's lock, so equal sequences of frames give equal faults.
/// Frames of different connections overtake each other when one is delayed.
using FaultPlan = std::function<Fault(const FrameInFlight&)>;

}  // namespace weft::transport

// Carriers: ways in which the bytes of tensors get to the other end of a connection, besides in the
// frames themselves.
//
// Which carriers a connection has is negotiated in the hello, as a feature. The row of a tensor
// then says which carrier has its bytes, and where they are. A carrier may always decline: then the
// bytes go in the frame.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <c10/core/Allocator.h>

#include "weft/codec.h"

namespace weft::wire {

/// Tensors of fewer bytes go in the frame: to copy them twice costs less than to find a place.
inline constexpr size_t kSmallestCarried = 32 * 1024;

/// While a receiver has left so many offered bytes untaken, nothing more is offered to it.
inline constexpr size_t kMostUntaken = size_t{64} << 20;

/// Where a carrier has the bytes of a tensor, in the carrier's own form.
struct Place {
  static constexpr size_t kMaxBytes = 32;

  uint8_t carrier = 0;  // its number; docs/wire_protocol.md has them
  uint8_t size = 0;
  std::array<std::byte, kMaxBytes> bytes{};

  std::span<const std::byte> content() const { return {bytes.data(), size}; }
};

class Carrier {
 public:
  virtual ~Carrier() = default;

  /// Before the tensor is sent, on the sender's thread, which has no lock: brings the bytes to
  /// memory of this carrier, so that place() costs little. `tensor` refers to the copy then, and
  /// keeps the original.
  virtual void stage(Encoder::OutgoingTensor& tensor) = 0;
  /// What the row says. Nothing: the bytes go in the frame. One thread at a time.
  virtual std::optional<Place> place(const Encoder::OutgoingTensor& tensor) = 0;
  /// Bytes that were placed and that the receiver has not taken yet. Any thread.
  virtual size_t untaken_bytes() = 0;
  /// At the receiver: the `bytes` bytes at `place`, which are released with the memory. Throws
  /// kBadMessage. One thread at a time.
  virtual c10::DataPtr take(const Place& place, size_t bytes) = 0;
};

}  // namespace weft::wire

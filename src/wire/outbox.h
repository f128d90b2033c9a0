// Frames that wait to be written: small ones copied together, large tensors referred to.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/codec.h"
#include "wire/frame.h"

namespace weft::wire {

class Outbox {
 public:
  /// Adds a frame of `prelude`, the encoder's payload and its tensors. `header`'s sizes are filled
  /// in.
  void add(FrameHeader header, std::span<const std::byte> prelude, const Encoder& value);
  void add(FrameHeader header, std::span<const std::byte> body = {});

  bool empty() const { return bytes() == 0; }
  size_t bytes() const { return small_.size() - written_ + large_bytes_; }

  /// Up to `limit` pieces to write next; returns how many.
  int gather(iovec* pieces, int limit) const;
  /// The first `n` bytes of what gather() gave were written.
  void consume(size_t n);
  void clear();

 private:
  struct Large {
    size_t position;  // in small_: goes out before the byte there
    const std::byte* data;
    size_t bytes;
    at::Tensor keep;
  };
  std::byte* extend(size_t n);

  // Invariant: [written_, small_.size()) and large_[next_large_..] are what is left to write.
  std::vector<std::byte> small_;
  size_t written_ = 0;
  std::vector<Large> large_;
  size_t next_large_ = 0;
  size_t large_bytes_ = 0;
};

}  // namespace weft::wire

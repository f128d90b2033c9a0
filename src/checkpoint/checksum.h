// The checksum of a checkpoint's files: CRC-64 as xz computes it (ECMA-182, reflected).
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::checkpoint {

/// A function that computes the checksum: returns the state after `bytes`, given that before them.
using Crc64 = uint64_t (*)(uint64_t state, std::span<const std::byte> bytes);

/// All functions that this processor can run, the fastest one last. All give the same results.
const std::vector<Crc64>& crc64_ways();

/// Detects damage, but not forgery.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes) { state_ = crc64_ways().back()(state_, bytes); }
  uint64_t value() const { return ~state_; }

 private:
  uint64_t state_ = ~uint64_t{0};
};

}  // namespace weft::checkpoint

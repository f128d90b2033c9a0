// One row of the tensor table: everything about a tensor but its bytes.
//
//   u8 dtype   u8 flags   u8 dimensions   u8 sparse dimensions
//   u64 bytes
//   i64 sizes[dimensions]
//   i64 strides[dimensions]      only with kStrided
//   u8 carrier   u8 size   u8 place[size]      only with kCarried
//
// kUndefined: dtype, dimensions and bytes are zero. kSparse: the row has sizes and no bytes, and
// the next two rows are its indices and values. kCarried: the bytes are not in the frame; a carrier
// has them at `place`.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "wire/carrier.h"
#include "wire/limits.h"

namespace weft::wire {

enum TensorFlags : uint8_t {
  kRequiresGrad = 1,
  kStrided = 2,
  kUndefined = 4,
  kSparse = 8,
  kCoalesced = 16,
  kCarried = 32,
};
inline constexpr uint8_t kAllTensorFlags = 63;

struct TensorEntry {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  uint8_t flags = 0;
  uint8_t dimensions = 0;
  uint8_t sparse_dimensions = 0;
  uint64_t bytes = 0;
  std::array<int64_t, kMaxDimensions> sizes;
  std::array<int64_t, kMaxDimensions> strides;
  Place place;  // with kCarried

  /// Of its bytes those that are in the frame.
  uint64_t bytes_in_frame() const { return flags & kCarried ? 0 : bytes; }
  c10::IntArrayRef size_list() const { return {sizes.data(), dimensions}; }
  c10::IntArrayRef stride_list() const { return {strides.data(), dimensions}; }
};

/// Without kCarried, which only append_carried() adds.
void append_entry(std::vector<char>& out, const TensorEntry& entry);
/// Appends `row`, one that append_entry() made, as the row of a tensor that is at `place`.
void append_carried(std::vector<char>& out, std::span<const std::byte> row, const Place& place);

/// Reads one row from the front of `in` and removes it there. Throws kBadMessage unless the row
/// describes exactly `bytes` bytes of memory.
TensorEntry read_entry(std::span<const std::byte>& in);

/// The size of the memory from the first to the last element of a dense tensor. Throws kBadMessage
/// on overflow.
uint64_t spanned_bytes(const TensorEntry& entry);

}  // namespace weft::wire

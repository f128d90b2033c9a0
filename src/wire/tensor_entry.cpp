// SPDX-License-Identifier: BSD-3-Clause
#include "wire/tensor_entry.h"

#include <cstring>

#include <fmt/format.h>

#include "weft/codec.h"
#include "wire/dtype.h"

namespace weft::wire {

namespace {

// The largest tensor. Sizes up to this fit into 63 bits, and their sums do not overflow.
constexpr uint64_t kMaxTensorBytes = kMaxBulk;

struct FixedPart {
  uint8_t dtype, flags, dimensions, sparse_dimensions;
  uint64_t bytes;
};
constexpr size_t kFixedBytes = 12;

FixedPart read_fixed(std::span<const std::byte> in) {
  FixedPart part;
  std::memcpy(&part.dtype, in.data(), 4);
  std::memcpy(&part.bytes, in.data() + 4, 8);
  return part;
}

uint64_t checked_multiply(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > kMaxTensorBytes) {
    Decoder::fail(fmt::format("tensor too large: {} x {}", a, b));
  }
  return product;
}

void read_list(std::span<const std::byte>& in, std::array<int64_t, kMaxDimensions>& to, size_t n) {
  const size_t bytes = n * sizeof(int64_t);
  if (in.size() < bytes) Decoder::fail("tensor table ends within a row");
  std::memcpy(to.data(), in.data(), bytes);
  in = in.subspan(bytes);
  for (size_t i = 0; i < n; ++i) {
    if (to[i] < 0) Decoder::fail(fmt::format("negative size or stride in tensor: {}", to[i]));
  }
}

void read_place(std::span<const std::byte>& in, Place& place) {
  if (in.size() < 2) Decoder::fail("tensor table ends within a row");
  place.carrier = static_cast<uint8_t>(in[0]);
  place.size = static_cast<uint8_t>(in[1]);
  if (place.size > Place::kMaxBytes || in.size() < size_t{2} + place.size)
    Decoder::fail(fmt::format("a place of {} bytes in a tensor's row", place.size));
  std::memcpy(place.bytes.data(), in.data() + 2, place.size);
  in = in.subspan(size_t{2} + place.size);
}

void check_shape(const TensorEntry& entry) {
  if (entry.flags & kSparse) {
    if (entry.bytes != 0 || entry.flags & (kStrided | kCarried))
      Decoder::fail("sparse tensor row with bytes");
    uint64_t elements = 1;
    for (int64_t size : entry.size_list()) {
      // The sizes of a sparse tensor are no memory, but libtorch multiplies them.
      if (__builtin_mul_overflow(elements, static_cast<uint64_t>(size), &elements) ||
          elements > static_cast<uint64_t>(INT64_MAX)) {
        Decoder::fail("sizes of sparse tensor overflow");
      }
    }
    return;
  }
  const uint64_t needed = spanned_bytes(entry);
  if (needed != entry.bytes) {
    Decoder::fail(fmt::format("tensor of {} bytes declares {}", needed, entry.bytes));
  }
}

}  // namespace

uint64_t spanned_bytes(const TensorEntry& entry) {
  const uint64_t item = c10::elementSize(entry.dtype);
  uint64_t elements = 1;
  uint64_t last = 0;
  for (size_t i = 0; i < entry.dimensions; ++i) {
    const auto size = static_cast<uint64_t>(entry.sizes[i]);
    if (size == 0) elements = 0;
  }
  if (elements == 0) {
    // The other sizes are bounded as well: libtorch multiplies them.
    uint64_t product = 1;
    for (size_t i = 0; i < entry.dimensions; ++i) {
      product = checked_multiply(product, std::max<uint64_t>(1, entry.sizes[i]));
    }
    return 0;
  }
  for (size_t i = 0; i < entry.dimensions; ++i) {
    const auto size = static_cast<uint64_t>(entry.sizes[i]);
    elements = checked_multiply(elements, size);
    if (entry.flags & kStrided) {
      last += checked_multiply(size - 1, static_cast<uint64_t>(entry.strides[i]));
      if (last > kMaxTensorBytes) Decoder::fail("strides of tensor overflow");
    }
  }
  const uint64_t spanned = entry.flags & kStrided ? last + 1 : elements;
  return checked_multiply(spanned, item);
}

void append_entry(std::vector<char>& out, const TensorEntry& entry) {
  const size_t list = entry.dimensions * sizeof(int64_t);
  const bool strided = entry.flags & kStrided;
  const size_t start = out.size();
  out.resize(start + kFixedBytes + list * (strided ? 2 : 1));
  char* to = out.data() + start;
  to[0] = static_cast<char>(entry.flags & kUndefined ? 0 : *dtype_to_wire(entry.dtype));
  to[1] = static_cast<char>(entry.flags);
  to[2] = static_cast<char>(entry.dimensions);
  to[3] = static_cast<char>(entry.sparse_dimensions);
  std::memcpy(to + 4, &entry.bytes, 8);
  std::memcpy(to + kFixedBytes, entry.sizes.data(), list);
  if (strided) std::memcpy(to + kFixedBytes + list, entry.strides.data(), list);
}

void append_carried(std::vector<char>& out, std::span<const std::byte> row, const Place& place) {
  const size_t start = out.size();
  out.resize(start + row.size() + 2 + place.size);
  char* to = out.data() + start;
  std::memcpy(to, row.data(), row.size());
  to[1] = static_cast<char>(to[1] | kCarried);
  to += row.size();
  to[0] = static_cast<char>(place.carrier);
  to[1] = static_cast<char>(place.size);
  std::memcpy(to + 2, place.bytes.data(), place.size);
}

TensorEntry read_entry(std::span<const std::byte>& in) {
  if (in.size() < kFixedBytes) Decoder::fail("tensor table ends within a row");
  const FixedPart fixed = read_fixed(in);
  in = in.subspan(kFixedBytes);
  TensorEntry entry;
  entry.flags = fixed.flags;
  entry.dimensions = fixed.dimensions;
  entry.sparse_dimensions = fixed.sparse_dimensions;
  entry.bytes = fixed.bytes;
  if (fixed.flags & ~kAllTensorFlags) Decoder::fail(fmt::format("tensor flags {}", fixed.flags));
  if (fixed.dimensions > kMaxDimensions) {
    Decoder::fail(fmt::format("tensor of {} dimensions", fixed.dimensions));
  }
  if (fixed.flags & kUndefined) {
    if (fixed.flags != kUndefined || fixed.dtype || fixed.dimensions || fixed.bytes ||
        fixed.sparse_dimensions) {
      Decoder::fail("undefined tensor with contents");
    }
    return entry;
  }
  if (!(fixed.flags & kSparse) && (fixed.flags & kCoalesced || fixed.sparse_dimensions)) {
    Decoder::fail("dense tensor with what only sparse ones have");
  }
  const auto dtype = dtype_from_wire(fixed.dtype);
  if (!dtype) Decoder::fail(fmt::format("tensor of unknown dtype {}", fixed.dtype));
  entry.dtype = *dtype;
  read_list(in, entry.sizes, entry.dimensions);
  if (entry.flags & kStrided) read_list(in, entry.strides, entry.dimensions);
  if (entry.flags & kCarried) read_place(in, entry.place);
  check_shape(entry);
  return entry;
}

}  // namespace weft::wire

// Limits applied before anything is allocated for bytes from outside.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::wire {

inline constexpr size_t kMaxHelloBody = 16 * 1024;
inline constexpr size_t kMaxBody = 256u << 20;           // a frame without the bytes of its tensors
inline constexpr uint64_t kMaxBulk = uint64_t{1} << 40;  // the bytes of all tensors of a frame
inline constexpr size_t kMaxRows = 4096;  // rows of a tensor table: a sparse tensor has three
inline constexpr size_t kMaxDimensions = 16;
inline constexpr int kMaxNesting = 32;
inline constexpr size_t kMaxNameBytes = 128;

}  // namespace weft::wire

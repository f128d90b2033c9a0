// What is said of a context when there is no memory to say more.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <new>
#include <string>

namespace weft::autograd {

/// So short that a std::string has it in itself: making and copying that takes no memory.
inline constexpr char kOutOfMemory[] = "out of memory";
static_assert(sizeof(kOutOfMemory) <= 16);

/// What `make` returns; without memory for that, kOutOfMemory.
template <typename F>
std::string text_by(const F& make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

}  // namespace weft::autograd

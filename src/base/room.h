// For work that goes on when there is no memory: what takes it early, where a lack of it can still
// be told to somebody, and how long to wait for some.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace weft::base {

/// After which a thread tries again what it had no memory for and can tell to nobody.
inline constexpr auto kMomentWithoutMemory = std::chrono::milliseconds(10);

/// Until `vector` has more than `count` elements, adding one takes no memory. Throws
/// std::bad_alloc.
template <typename T>
void make_room(std::vector<T>& vector, size_t count) {
  if (vector.capacity() < count) vector.reserve(std::max(count, 2 * vector.capacity()));
}

}  // namespace weft::base

// Memory that is taken before it is needed, where a lack of it can still be told to somebody.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace weft::base {

/// Until `vector` has more than `count` elements, adding one takes no memory. Throws
/// std::bad_alloc.
template <typename T>
void make_room(std::vector<T>& vector, size_t count) {
  if (vector.capacity() < count) vector.reserve(std::max(count, 2 * vector.capacity()));
}

}  // namespace weft::base

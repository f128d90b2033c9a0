// A set of numbers that are mostly added in order: kept as intervals.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace weft::rref {

class SerialSet {
 public:
  bool contains(uint64_t number) const {
    auto after = intervals_.upper_bound(number);
    return after != intervals_.begin() && std::prev(after)->second > number;
  }

  void insert(uint64_t number) {
    if (contains(number)) return;
    auto after = intervals_.upper_bound(number);
    uint64_t first = number, end = number + 1;
    if (after != intervals_.end() && after->first == end) {
      end = after->second;
      after = intervals_.erase(after);
    }
    if (after != intervals_.begin() && std::prev(after)->second == number) {
      std::prev(after)->second = end;
    } else {
      intervals_.emplace(first, end);
    }
  }

  size_t intervals() const { return intervals_.size(); }

 private:
  std::map<uint64_t, uint64_t> intervals_;  // first, one past the last
};

}  // namespace weft::rref

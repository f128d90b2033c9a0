// A set of numbers that are mostly added in order: kept as intervals.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace weft::rref {

class SerialSet {
 public:
  bool contains(uint64_t number) const {
    auto after = intervals_.upper_bound(number);
    return after != intervals_.begin() && std::prev(after)->second > number;
  }

  /// Without memory nothing changes.
  void insert(uint64_t number) {
    if (contains(number)) return;
    const auto after = intervals_.upper_bound(number);
    const bool joins_after = after != intervals_.end() && after->first == number + 1;
    if (after != intervals_.begin() && std::prev(after)->second == number) {
      std::prev(after)->second = joins_after ? after->second : number + 1;
      if (joins_after) intervals_.erase(after);
    } else if (joins_after) {
      auto interval = intervals_.extract(after);
      interval.key() = number;
      intervals_.insert(std::move(interval));
    } else {
      intervals_.emplace(number, number + 1);
    }
  }

  size_t intervals() const { return intervals_.size(); }

 private:
  std::map<uint64_t, uint64_t> intervals_;  // first, one past the last
};

}  // namespace weft::rref

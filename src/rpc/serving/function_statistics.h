// What the functions of this program have done as callees: how often, how long.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "observe/histogram.h"
#include "observe/sharded_counter.h"
#include "weft/debug_info.h"

namespace weft::rpc {

/// For people.
LatencySummary summarize(const observe::Histogram& histogram);

/// Any thread may record at any time; threads hardly share memory for it.
class FunctionStatistics {
 public:
  FunctionStatistics();
  ~FunctionStatistics();

  /// A call was answered. `took`: the time in user code; negative if it never got there.
  void record(uint32_t function, bool failed, base::Duration took) noexcept;
  /// What the function has taken lately; zero if it has not run.
  base::Duration usual(uint32_t function) const {
    return base::Duration(usual_[place_of(function)].load(std::memory_order_relaxed));
  }
  /// The function takes longer than `time` right now.
  void takes_more_than(uint32_t function, base::Duration time);

  std::vector<FunctionStats> summarize() const;

 private:
  struct Cell {
    std::atomic<uint64_t> served{0}, failed{0};
    observe::Histogram handler;
  };
  // Functions of libraries that were loaded later share the last place.
  uint32_t place_of(uint32_t function) const {
    return function < functions_ ? function : functions_ - 1;
  }
  Cell* cell_of(uint32_t place) noexcept;

  const uint32_t functions_;
  // Written only when it changes by much: every call reads it.
  const std::unique_ptr<std::atomic<int64_t>[]> usual_;
  const std::unique_ptr<std::atomic<Cell*>[]> cells_;  // by shard, then by place; made when needed
};

}  // namespace weft::rpc

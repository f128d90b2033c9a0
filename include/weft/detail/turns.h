// Turns: calls get them one at a time, in the order in which they came; no thread waits for one.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "weft/detail/mutex.h"
#include "weft/future.h"

namespace weft::detail {

class Turns {
 public:
  struct Turn {
    uint64_t number;
    std::optional<Future<void>> comes;  // nothing: it is there
  };
  Turn take() {
    const MutexLock lock(mutex_);
    const uint64_t number = next_++;
    if (!current_) {
      current_ = number;
      return {number, std::nullopt};
    }
    waiting_.emplace_back(number, Promise<void>());
    return {number, waiting_.back().second.future()};
  }
  /// Ends a turn; a turn that has not come yet is given up.
  void end(uint64_t number) {
    std::optional<Promise<void>> next, given_up;
    {
      const MutexLock lock(mutex_);
      if (current_ != number) {
        given_up = take_out(number);
      } else if (waiting_.empty()) {
        current_.reset();
      } else {
        current_ = waiting_.front().first;
        next = take_out(*current_);
      }
    }
    if (next) next->set_value();
  }

 private:
  std::optional<Promise<void>> take_out(uint64_t number) WEFT_REQUIRES(mutex_) {
    for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
      if (at->first != number) continue;
      Promise<void> promise = std::move(at->second);
      waiting_.erase(at);
      return promise;
    }
    return std::nullopt;
  }

  Mutex mutex_;
  uint64_t next_ WEFT_GUARDED_BY(mutex_) = 1;
  std::optional<uint64_t> current_ WEFT_GUARDED_BY(mutex_);
  std::deque<std::pair<uint64_t, Promise<void>>> waiting_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::detail

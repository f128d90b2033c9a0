// Whose turn it is: one at a time, in the order in which they came, without a thread that waits.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "weft/future.h"

namespace weft::detail {

class Turns {
 public:
  /// Nothing if it is ours at once, else a future of it.
  std::optional<Future<void>> take() {
    std::lock_guard lock(mutex_);
    if (!std::exchange(taken_, true)) return std::nullopt;
    waiting_.emplace_back();
    return waiting_.back().future();
  }
  void end() {
    std::unique_lock lock(mutex_);
    if (waiting_.empty()) {
      taken_ = false;
      return;
    }
    Promise<void> next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next.set_value();
  }

 private:
  std::mutex mutex_;
  bool taken_ = false;
  std::deque<Promise<void>> waiting_;
};

}  // namespace weft::detail

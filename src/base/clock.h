// The clock of everything below the public API: monotonic, and replaced in tests.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "base/mutex.h"

namespace weft::base {

using Time = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

/// from + after, or Time::max() if that overflows.
inline Time later(Time from, Duration after) {
  return after > Time::max() - from ? Time::max() : from + after;
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;

  /// Whether now() advances by itself, so that a thread may sleep until a time of this clock.
  virtual bool runs_by_itself() const { return true; }
  /// If the clock does not run by itself: it calls `wake` after every advance.
  virtual void on_advance(std::function<void()> wake) { (void)wake; }
};

class SteadyClock final : public Clock {
 public:
  Time now() const override { return std::chrono::steady_clock::now(); }
};

/// Moves only when advance() is called.
class ManualClock final : public Clock {
 public:
  Time now() const override {
    const MutexLock lock(mutex_);
    return now_;
  }
  bool runs_by_itself() const override { return false; }
  void on_advance(std::function<void()> wake) override {
    const MutexLock lock(mutex_);
    wakes_.push_back(std::move(wake));
  }
  void advance(Duration by) {
    std::vector<std::function<void()>> wakes;
    {
      const MutexLock lock(mutex_);
      now_ += by;
      wakes = wakes_;
    }
    for (auto& wake : wakes) wake();
  }

 private:
  mutable Mutex mutex_;
  Time now_ WEFT_GUARDED_BY(mutex_){std::chrono::hours(1)};
  std::vector<std::function<void()>> wakes_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::base

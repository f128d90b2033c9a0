// Pauses between two looks for a change that nobody announces.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace weft::rendezvous {

/// Sleeps 1 ms, then ever longer up to `longest`, and never past the deadline.
class Pause {
 public:
  explicit Pause(base::Time deadline, base::Duration longest = kLongest)
      : deadline_(deadline), longest_(longest) {}

  bool over() const { return std::chrono::steady_clock::now() >= deadline_; }
  void reset() { next_ = kShortest; }
  void wait() {
    const base::Time now = std::chrono::steady_clock::now();
    std::this_thread::sleep_until(std::min(base::later(now, next_), deadline_));
    next_ = std::min(2 * next_, longest_);
  }

  static constexpr base::Duration kLongest = std::chrono::milliseconds(50);

 private:
  static constexpr base::Duration kShortest = std::chrono::milliseconds(1);

  base::Time deadline_;
  base::Duration longest_;
  base::Duration next_ = kShortest;
};

}  // namespace weft::rendezvous

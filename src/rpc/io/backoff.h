// When to try to connect again after failures: at once, then ever later, with jitter.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace weft::rpc {

class Backoff {
 public:
  explicit Backoff(uint64_t seed) : random_(seed | 1) {}

  bool may_try(base::Time now) const { return now >= next_; }
  base::Time next() const { return next_; }

  void on_success() { failures_ = 0; }
  void on_failure(base::Time now) {
    using std::chrono::milliseconds;
    const int doublings = std::min(failures_++, 5);
    const base::Duration step =
        std::min<base::Duration>(milliseconds(20) * (1 << doublings), milliseconds(500));
    // Half fixed, half random: peers of a worker that came back do not all knock together.
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    next_ = now + step / 2 +
            base::Duration(static_cast<int64_t>(random_ % static_cast<uint64_t>(step.count() / 2)));
  }

 private:
  uint64_t random_;
  int failures_ = 0;
  base::Time next_ = base::Time::min();
};

}  // namespace weft::rpc

// When to say what a long wait waits for: after 5 s, then ever less often. A deterministic core.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>

#include "base/clock.h"

namespace weft::rpc {

class WaitHint {
 public:
  static constexpr base::Duration kFirst = std::chrono::seconds(5);
  static constexpr base::Duration kLongest = std::chrono::minutes(5);

  void begin(base::Time now) {
    began_ = now;
    pause_ = kFirst;
    due_ = now + kFirst;
  }
  /// True once for each hint that is due.
  bool is_due(base::Time now) {
    if (now < due_) return false;
    pause_ = std::min<base::Duration>(2 * pause_, kLongest);
    due_ = now + pause_;
    return true;
  }
  base::Duration waited(base::Time now) const { return now - began_; }

 private:
  base::Time began_{};
  base::Time due_ = base::Time::max();
  base::Duration pause_ = kFirst;
};

}  // namespace weft::rpc

// The heartbeat of one connected peer: when to ping it, and when its silence means that it is dead.
// A deterministic core: told the time, tells what to do.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace weft::rpc {

class Heartbeat {
 public:
  struct Times {
    base::Duration interval, suspect_after, dead_after;
  };
  enum class Verdict { kFine, kPing, kSuspect, kDead };

  Heartbeat(Times times, base::Time now) : times_(times), heard_(now), pinged_(now), asked_(now) {}

  void on_received(base::Time now) {
    heard_ = std::max(heard_, now);
    suspected_ = false;
  }

  /// To be called at next() or earlier. kPing and kSuspect (which is told once) ask for a ping.
  Verdict on_time(base::Time now) {
    // It may have been asked later than it wants to be by now, if it was idle then.
    const base::Duration late = now - std::max(next(), asked_);
    const base::Duration since_asked = now - std::exchange(asked_, now);
    if (since_asked >= times_.suspect_after) {
      // This process stood still (stopped, or starved of CPU), not the peer, whose answers may lie
      // unread. The peer gets its full time again.
      heard_ = pinged_ = now;
      suspected_ = false;
      return Verdict::kPing;
    }
    if (late >= kLate) {
      // This process had no CPU for a moment, and on the same host the peer may have had none
      // either: that moment is not counted as silence. What came meanwhile is read before the next
      // call.
      heard_ += late;
      pinged_ = now;
      return Verdict::kPing;
    }
    const base::Duration silent = now - heard_;
    if (silent >= times_.dead_after) return Verdict::kDead;
    if (silent >= times_.suspect_after && !suspected_) {
      suspected_ = true;
      pinged_ = now;
      return Verdict::kSuspect;
    }
    if (silent >= interval() && now - pinged_ >= interval()) {
      pinged_ = now;
      return Verdict::kPing;
    }
    return Verdict::kFine;
  }

  /// To be told after on_time() whether nobody waits for the peer just now: then it is pinged half
  /// as often, but before it would be suspected. When its silence means death stays the same.
  void set_idle(bool idle) { idle_ = idle; }

  /// When to ask again.
  base::Time next() const {
    const base::Time ping = base::later(std::max(heard_, pinged_), interval());
    const base::Time suspect =
        suspected_ ? base::Time::max() : base::later(heard_, times_.suspect_after);
    return std::min({ping, suspect, base::later(heard_, times_.dead_after)});
  }
  base::Duration silence(base::Time now) const { return now - heard_; }

 private:
  static constexpr base::Duration kLate = std::chrono::milliseconds(10);

  base::Duration interval() const {
    const base::Duration longer = std::min(2 * times_.interval, 2 * times_.suspect_after / 3);
    return idle_ ? std::max(times_.interval, longer) : times_.interval;
  }

  Times times_;
  bool idle_ = false;
  base::Time heard_;
  base::Time pinged_;
  base::Time asked_;
  bool suspected_ = false;
};

}  // namespace weft::rpc

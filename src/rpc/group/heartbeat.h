// The heartbeat of one connected peer: when to ping it, and when its silence means that it is dead.
// A deterministic core: told the time, tells what to do.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <chrono>

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
    asked_ = now;
    if (late >= std::max({times_.suspect_after - times_.interval, times_.interval, kLate})) {
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
      ping(now);
      return Verdict::kPing;
    }
    const base::Duration silent = now - heard_;
    if (silent >= times_.dead_after) return Verdict::kDead;
    if (!suspected_ && now >= suspicion()) {
      suspected_ = true;
      ping(now);
      return Verdict::kSuspect;
    }
    if (now >= next_ping()) {
      ping(now);
      return Verdict::kPing;
    }
    return Verdict::kFine;
  }

  /// Whether nobody waits for the peer just now: then its silence is normal for longer before it is
  /// pinged. When its silence means death stays the same. To be told that nobody waits before
  /// on_time(), and that somebody does after it: else on_time() would find itself late.
  void set_idle(bool idle) { idle_ = idle; }

  /// When to ask again.
  base::Time next() const {
    const base::Time suspect = suspected_ ? base::Time::max() : suspicion();
    return std::min({next_ping(), suspect, base::later(heard_, times_.dead_after)});
  }
  base::Duration silence(base::Time now) const { return now - heard_; }

 private:
  static constexpr base::Duration kLate = std::chrono::milliseconds(10);

  void ping(base::Time now) {
    if (!is_asked()) first_ping_ = now;
    pinged_ = now;
  }
  // Whether the peer was pinged since it was heard.
  bool is_asked() const { return pinged_ > heard_; }

  // With the options as they are, a peer whose references are renewed is never pinged while idle:
  // the renewals come sooner.
  base::Duration quiet_time() const {
    if (!idle_) return times_.interval;
    return std::max(times_.interval, std::min(7 * times_.interval / 2, 7 * times_.dead_after / 16));
  }
  base::Time next_ping() const {
    return is_asked() ? base::later(pinged_, times_.interval) : base::later(heard_, quiet_time());
  }
  // A peer that was not pinged may have had nothing to say; one that was gets an interval to
  // answer.
  base::Time suspicion() const {
    if (!is_asked()) return base::Time::max();
    return std::max(base::later(heard_, times_.suspect_after),
                    base::later(first_ping_, times_.interval));
  }

  Times times_;
  bool idle_ = false;
  base::Time heard_;
  base::Time pinged_;
  base::Time first_ping_{};  // since the peer was heard, if is_asked()
  base::Time asked_;
  bool suspected_ = false;
};

}  // namespace weft::rpc

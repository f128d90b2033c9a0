// Polls for a while before the thread sleeps, without taking the CPU from the process it waits for.
//
// The answer usually comes within a few polls, and giving up the CPU between them would cost more
// than the polls. If it does not come so soon, the peer may need this CPU: then every fourth poll
// yields, and so do the next 100 spins from their beginning. If other threads are known to want the
// CPU, every poll yields.
//
// A thread that yields comes back when all others that want its CPU had their turn; one that sleeps
// is given the CPU soon after it is woken. If a thread came back milliseconds later than it wanted
// to poll, others have much to do on its CPU: its next 30 spins end before they poll.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace weft::base {

class Spinner {
 public:
  /// Polls for `budget`, but not beyond `limit`.
  void begin(Duration budget, Time limit = Time::max()) {
    budget_ = spins_to_skip() > 0 ? Duration(0) : budget;
    if (budget_ != budget) --spins_to_skip();
    limit_ = limit;
    polls_ = 0;
    eager_ = reluctance_ == 0;
    if (!eager_) --reluctance_;
  }

  /// To be called after a poll that found nothing. Returns whether to poll again.
  bool again(bool crowded = false) {
    if (budget_.count() <= 0) return false;
    ++polls_;
    if (polls_ == 1) set_end(std::chrono::steady_clock::now());
    if (!crowded && worth_keeping_cpu()) return true;
    sched_yield();
    const Time now = std::chrono::steady_clock::now();
    if (now - until_ > kLate) spins_to_skip() = kSpinsToSkip;
    return now < until_;
  }

 private:
  // A limit that has passed already does not make the thread late.
  void set_end(Time now) { until_ = std::min(later(now, budget_), std::max(limit_, now)); }

  bool worth_keeping_cpu() {
    if (eager_ && polls_ <= kEagerPolls) return true;
    if (eager_ && polls_ == kEagerPolls + 1) reluctance_ = kSpinsBeforeEagerAgain;
    return polls_ % kPollsPerYield != 0;
  }

  // Of this thread, whatever it polls.
  static int& spins_to_skip() {
    thread_local int spins = 0;
    return spins;
  }

  static constexpr Duration kLate = std::chrono::milliseconds(2);
  static constexpr int kSpinsToSkip = 30;
  static constexpr uint64_t kEagerPolls = 40;
  static constexpr uint64_t kPollsPerYield = 4;
  static constexpr int kSpinsBeforeEagerAgain = 100;

  Duration budget_{0};
  Time limit_ = Time::max();
  Time until_{};
  uint64_t polls_ = 0;
  int reluctance_ = 0;
  bool eager_ = true;
};

}  // namespace weft::base

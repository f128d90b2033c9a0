// Polls for a while before the thread sleeps, without taking the CPU from the process it waits for.
//
// The answer usually comes within microseconds, and giving up the CPU meanwhile would cost more
// than polling. If it does not come so soon, the peer may need this CPU: then every fourth poll
// yields, and so do the next 100 spins from their beginning. If other threads are known to want the
// CPU, every poll yields.
//
// A thread that yields comes back when all others that want its CPU had their turn; one that sleeps
// is given the CPU soon after it is woken. If a thread came back milliseconds later than it wanted
// to poll, twice in a row, others have much to do on its CPU: its next 30 spins end before they
// poll. Once happens among threads that wait in turns, and tells nothing.
//
// Where other threads want the CPU and what this one waits for comes much later than a spin ends,
// eight times in a row, spinning only keeps the others from their work: of the next spins, every
// 16th polls, until it comes sooner or nobody else wants the CPU.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace weft::base {

class Spinner {
 public:
  /// Polls for `budget`, but not beyond `limit`.
  void begin(Duration budget, Time limit = Time::max()) {
    wanted_ = budget;
    budget_ = spins_to_skip() > 0 ? Duration(0) : budget;
    if (budget_ != budget) --spins_to_skip();
    began_ = Time();
    contended_ = false;
    if (is_pointless() && budget.count() > 0) {
      budget_ = Duration(0);
      began_ = std::chrono::steady_clock::now();
      contended_ = true;  // as far as is known
    }
    limit_ = limit;
    polls_ = 0;
    eager_ = reluctance_ == 0;
    if (!eager_) --reluctance_;
  }

  /// For polls that are looks at memory. `brief`: more threads look than there are CPUs for, and
  /// the one that could end their wait may be waiting for this CPU; a few looks keep it, not 5 us.
  void set_brief(bool brief) { is_brief_ = brief; }

  /// To be called after a poll that found nothing. Returns whether to poll again.
  bool again(bool crowded = false) {
    if (budget_.count() <= 0) return false;
    ++polls_;
    if (polls_ == 1) {
      began_ = std::chrono::steady_clock::now();
      set_end(began_);
    }
    if (!crowded && worth_keeping_cpu()) return true;
    const Time before = std::chrono::steady_clock::now();
    sched_yield();
    const Time now = std::chrono::steady_clock::now();
    if (now - before > kOthersRan) contended_ = true;
    if (now < until_) {
      lates() = 0;
      return true;
    }
    if (now - until_ > kLate && ++lates() >= kLatesBeforeSkips) spins_to_skip() = kSpinsToSkip;
    return false;
  }

  /// To be called when what the thread waited for has come, also if it slept meanwhile.
  void came() {
    if (began_ == Time()) return;  // it was there at once, which tells nothing of spinning
    const bool in_vain =
        contended_ && std::chrono::steady_clock::now() - began_ > kMuchLater * wanted_;
    pointless().times = in_vain ? std::min(pointless().times + 1, kTimesBeforeNoSpin) : 0;
  }

 private:
  // A limit that has passed already does not make the thread late.
  void set_end(Time now) { until_ = std::min(later(now, budget_), std::max(limit_, now)); }

  bool worth_keeping_cpu() {
    if (eager_ && !waited_long()) return true;
    if (std::exchange(eager_, false)) reluctance_ = kSpinsBeforeEagerAgain;
    return polls_ % kPollsPerYield != 0;
  }

  // By polls and by time: a poll may be a system call or a look at memory.
  bool waited_long() const {
    if (polls_ <= kEagerPolls) return false;
    if (is_brief_) return true;
    if (polls_ % kPollsPerLookAtClock != 0) return false;
    return std::chrono::steady_clock::now() >= std::min(began_ + kEagerTime, until_);
  }

  // Of this thread, whatever it polls.
  static int& spins_to_skip() {
    thread_local int spins = 0;
    return spins;
  }

  // Of this thread: how often in a row it came back late. Skipped spins do not count.
  static int& lates() {
    thread_local int times = 0;
    return times;
  }

  // Of this thread: how many spins in a row were pointless, and how many were skipped since.
  struct Pointless {
    int times = 0;
    int skipped = 0;
  };
  static Pointless& pointless() {
    thread_local Pointless spins;
    return spins;
  }
  static bool is_pointless() {
    Pointless& spins = pointless();
    return spins.times >= kTimesBeforeNoSpin && ++spins.skipped % kSpinsPerTrial != 0;
  }

  static constexpr int kMuchLater = 4;
  static constexpr int kTimesBeforeNoSpin = 8;
  static constexpr int kSpinsPerTrial = 16;
  static constexpr Duration kOthersRan = std::chrono::microseconds(5);  // during a yield
  static constexpr Duration kLate = std::chrono::milliseconds(2);
  static constexpr int kLatesBeforeSkips = 2;
  static constexpr int kSpinsToSkip = 30;
  static constexpr uint64_t kEagerPolls = 40;
  static constexpr Duration kEagerTime = std::chrono::microseconds(5);
  static constexpr uint64_t kPollsPerLookAtClock = 8;
  static constexpr uint64_t kPollsPerYield = 4;
  static constexpr int kSpinsBeforeEagerAgain = 100;

  Duration wanted_{0};
  Duration budget_{0};
  Time began_{};
  bool contended_ = false;
  bool is_brief_ = false;
  Time limit_ = Time::max();
  Time until_{};
  uint64_t polls_ = 0;
  int reluctance_ = 0;
  bool eager_ = true;
};

}  // namespace weft::base

// The lead of a loop: one atomic word, by which one thread hands the lead to another.
//
// | phase     | who may touch the loop's state | what comes next                             |
// | --------- | ------------------------------ | ------------------------------------------- |
// | vacant    | nobody                         | take(), by the thread that was assigned     |
// | polling   | the leader                     | enter_user_code()                           |
// | user code | nobody                         | leave_user_code() or take_away(); one wins  |
//
// A run of user code has a number of its own, so whoever means an earlier run changes nothing. No
// threads and no waiting in here; tests/unit/base/leadership_simulation_test.cpp simulates them.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

namespace weft::base {

class Lead {
 public:
  /// The number of a run of user code.
  using Run = uint64_t;

  /// The thread that was assigned leads from now on.
  void take() {
    word_.store(word(run_of(word_.load(std::memory_order_acquire)), kPolling),
                std::memory_order_release);
  }

  // The leader's.
  Run enter_user_code() {
    const Run run = run_of(word_.load(std::memory_order_relaxed)) + 1;
    word_.store(word(run, kUserCode), std::memory_order_release);
    return run;
  }
  /// False: the lead was taken away meanwhile.
  bool leave_user_code(Run run) {
    uint64_t expected = word(run, kUserCode);
    return word_.compare_exchange_strong(expected, word(run, kPolling), std::memory_order_acq_rel);
  }
  /// Whether the thread in this run still leads.
  bool is_in(Run run) const {
    return word_.load(std::memory_order_acquire) == word(run, kUserCode);
  }

  /// Any thread. True: nobody leads any more, and the caller must see to it that a thread does.
  /// False: the run is over, or another thread was faster.
  bool take_away(Run run) {
    uint64_t expected = word(run, kUserCode);
    return word_.compare_exchange_strong(expected, word(run + 1, kVacant),
                                         std::memory_order_acq_rel);
  }

  /// One thread's, now and then: the run that lasts since it last asked.
  std::optional<Run> lasting_run() {
    const uint64_t now = word_.load(std::memory_order_acquire);
    const bool lasts = std::exchange(at_last_look_, now) == now && phase_of(now) == kUserCode;
    return lasts ? std::optional(run_of(now)) : std::nullopt;
  }

 private:
  enum Phase : uint64_t { kPolling = 0, kUserCode = 1, kVacant = 2 };
  static constexpr uint64_t word(Run run, Phase phase) { return run << 2 | phase; }
  static constexpr Run run_of(uint64_t word) { return word >> 2; }
  static constexpr Phase phase_of(uint64_t word) { return static_cast<Phase>(word & 3); }

  std::atomic<uint64_t> word_{word(0, kVacant)};
  uint64_t at_last_look_ = 0;
};

}  // namespace weft::base

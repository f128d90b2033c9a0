// Slots limit how many threads use a CPU for user code. A thread has at most one; while the thread
// blocks, the slot does not count.
//
// | slot    | counts | it becomes                                                                |
// | ------- | ------ | ------------------------------------------------------------------------- |
// | none    | no     | used, by take() within the limit or by take_beyond()                      |
// | used    | yes    | none, by give(); blocked, by on_blocked()                                 |
// | blocked | no     | none, by give(); used, by on_running(): beyond the limit, if need be      |
//
// Whatever the order of these, the count is that of the slots in use. No threads and no waiting in
// here; tests/unit/base/leadership_simulation_test.cpp simulates them.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::base {

class Slots {
 public:
  explicit Slots(size_t limit) : limit_(limit) {}

  size_t used() const { return used_.load(std::memory_order_seq_cst); }
  bool has_free() const { return used() < limit_; }

 private:
  friend class Slot;
  const size_t limit_;
  alignas(64) std::atomic<size_t> used_{0};  // many threads change it
};

/// The slot of one thread.
class Slot {
 public:
  enum class State : uint8_t { kNone, kUsed, kBlocked };

  explicit Slot(Slots& slots) : slots_(slots) {}

  // The thread's own.
  bool held() const { return state_.load(std::memory_order_relaxed) != State::kNone; }
  /// Whether the thread has a slot now.
  bool take() {
    if (held()) return true;
    size_t used = slots_.used_.load(std::memory_order_relaxed);
    do {
      if (used >= slots_.limit_) return false;
    } while (!slots_.used_.compare_exchange_weak(used, used + 1, std::memory_order_seq_cst));
    state_.store(State::kUsed, std::memory_order_release);
    return true;
  }
  /// For what was begun already: it goes on, whatever the limit.
  void take_beyond() {
    slots_.used_.fetch_add(1, std::memory_order_seq_cst);
    state_.store(State::kUsed, std::memory_order_release);
  }
  void give() {
    if (state_.exchange(State::kNone, std::memory_order_acq_rel) == State::kUsed)
      slots_.used_.fetch_sub(1, std::memory_order_seq_cst);
  }

  // One other thread's, which has found out what the thread does.
  State state() const { return state_.load(std::memory_order_acquire); }
  void on_blocked() {
    State used = State::kUsed;
    if (state_.compare_exchange_strong(used, State::kBlocked, std::memory_order_acq_rel))
      slots_.used_.fetch_sub(1, std::memory_order_seq_cst);
  }
  void on_running() {
    slots_.used_.fetch_add(1, std::memory_order_seq_cst);
    State blocked = State::kBlocked;
    if (!state_.compare_exchange_strong(blocked, State::kUsed, std::memory_order_acq_rel))
      slots_.used_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  Slots& slots_;
  std::atomic<State> state_{State::kNone};
};

}  // namespace weft::base

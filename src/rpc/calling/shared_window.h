// How many bytes of calls may be unanswered at one member, over all connections to it, before
// further callers wait.
//
// Counted are calls of 4 KiB or more of threads that serve nobody (depth 0): only such threads use
// several connections, and of smaller calls each connection has its own limit. So threads that make
// small calls share nothing here.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/futex.h"

namespace weft::rpc {

class SharedWindow {
 public:
  explicit SharedWindow(size_t bytes) : max_bytes_(bytes) {}

  /// Counts a call for which there is room; false if there is none. A call larger than the whole
  /// window goes when nothing else is out.
  bool try_open(uint32_t depth, size_t bytes) {
    if (!counts(depth, bytes)) return true;
    size_t used = used_.load(std::memory_order_seq_cst);
    do {
      if (used != 0 && used + bytes > max_bytes_) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_seq_cst));
    return true;
  }
  /// Counts a call that goes whether there is room or not.
  void open(uint32_t depth, size_t bytes) {
    if (counts(depth, bytes)) used_.fetch_add(bytes, std::memory_order_seq_cst);
  }
  /// To be called after the connection's own window has been closed for the call. Those who wait
  /// are told once there is ample room: to wake them for each answer would cost more than the
  /// answer.
  void close(uint32_t depth, size_t bytes, bool has_ample_room_here) {
    if (counts(depth, bytes)) used_.fetch_sub(bytes, std::memory_order_seq_cst);
    if (!has_ample_room_here || waiting_.load(std::memory_order_seq_cst) == 0) return;
    if (used_.load(std::memory_order_seq_cst) <= max_bytes_ - max_bytes_ / 4) notify();
  }
  /// There may be room now, for whatever reason.
  void notify() {
    if (waiting_.load(std::memory_order_seq_cst) == 0) return;
    signs_.fetch_add(1, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst) > 0) base::futex_wake_all(signs_);
  }

  /// A thread that waits for room, of any kind, at any of the connections. It takes the sign, looks
  /// for room, lets go of its locks and waits for another sign.
  class Waiter {
   public:
    explicit Waiter(SharedWindow& window) : window_(window) {
      window_.waiting_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Waiter() { window_.waiting_.fetch_sub(1, std::memory_order_seq_cst); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    uint32_t sign() const { return window_.signs_.load(std::memory_order_seq_cst); }
    // A sign from now on ends the wait: either it has changed when the thread falls asleep, or who
    // gives it sees that the thread may be asleep.
    void wait(uint32_t sign, base::Time until) {
      window_.asleep_.fetch_add(1, std::memory_order_seq_cst);
      base::futex_wait(window_.signs_, sign, until);
      window_.asleep_.fetch_sub(1, std::memory_order_seq_cst);
    }

   private:
    SharedWindow& window_;
  };

 private:
  static constexpr size_t kSmall = 4096;
  static bool counts(uint32_t depth, size_t bytes) { return depth == 0 && bytes >= kSmall; }

  const size_t max_bytes_;
  // Not on a cache line with what threads change: every answer looks at waiting_.
  alignas(64) std::atomic<uint32_t> waiting_{0};
  alignas(64) std::atomic<size_t> used_{0};
  std::atomic<uint32_t> signs_{0};
  std::atomic<uint32_t> asleep_{0};
};

}  // namespace weft::rpc

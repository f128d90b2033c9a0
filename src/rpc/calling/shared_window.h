// How many bytes of calls may be unanswered at one member, over all connections to it, before
// further callers wait.
//
// Counted are large calls (kLargeCall) of threads that serve nobody (depth 0): only such threads
// use several connections, and of small calls each connection has its own limit. So threads that
// make small calls share nothing here.
//
// A large call would wait for ever while smaller ones take whatever room there is. So a thread that
// has waited for kPatience with a large call claims the window it lacks room in, its connection's
// or this one: until it has its room, nobody else takes any there for a large call of the same
// nesting depth. Small calls go on, and do not count against the claimer: it has room if it would
// have it without them. Threads claim one after the other, in the order in which they lost
// patience. A call that holds room may depend on one that waits for room; so a claim ends after a
// while in any case, and for as long as it lasted there is no other.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/futex.h"
#include "base/mutex.h"
#include "rpc/calling/send_window.h"

namespace weft::rpc {

class SharedWindow {
 public:
  class Waiter;
  /// Whose room a call lacks: its connection's, or that of all connections to the member.
  enum class Lacks : uint8_t { kHere, kAtMember };

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
  /// answer. While a claim stands they are told of every answer: only the claimer may use the room.
  void close(uint32_t depth, size_t bytes, bool has_ample_room_here) {
    if (counts(depth, bytes)) used_.fetch_sub(bytes, std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst) == 0) return;
    const bool has_ample_room =
        has_ample_room_here && used_.load(std::memory_order_seq_cst) <= max_bytes_ - max_bytes_ / 4;
    if (has_ample_room || claims_.load(std::memory_order_relaxed) > 0) notify();
  }
  /// Whether a thread that waits has the right to the room that such a call over `connection`
  /// would take.
  bool is_claimed(uint32_t depth, size_t bytes, const void* connection) const {
    if (bytes < kLargeCall || claims_.load(std::memory_order_relaxed) == 0) return false;
    const base::MutexLock lock(mutex_);
    const Waiter* first = first_claimer(depth);
    if (!first || !first->holds_) return false;
    return first->lacks_ == Lacks::kHere ? first->connection_ == connection : counts(depth, bytes);
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
    Waiter(SharedWindow& window, uint32_t depth, size_t bytes, const void* connection,
           base::Time now)
        : window_(window),
          depth_(depth),
          connection_(connection),
          claims_from_(bytes < kLargeCall ? base::Time::max() : now + kPatience) {
      window_.waiting_.fetch_add(1, std::memory_order_seq_cst);
    }
    /// With room or without: a claim ends.
    ~Waiter() {
      if (is_in_line_) window_.leave_line(*this);
      window_.waiting_.fetch_sub(1, std::memory_order_seq_cst);
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    uint32_t sign() const { return window_.signs_.load(std::memory_order_seq_cst); }
    /// To be called before each look for room, with what the last one has shown: whether the room
    /// is this thread's alone.
    bool claims(Lacks lacks, base::Time now) {
      return now >= claims_from_ && window_.claim(*this, lacks, now);
    }
    // A sign from now on ends the wait: either it has changed when the thread falls asleep, or who
    // gives it sees that the thread may be asleep.
    void wait(uint32_t sign, base::Time until) {
      window_.asleep_.fetch_add(1, std::memory_order_seq_cst);
      base::futex_wait(window_.signs_, sign, until);
      window_.asleep_.fetch_sub(1, std::memory_order_seq_cst);
    }

   private:
    friend class SharedWindow;
    SharedWindow& window_;
    const uint32_t depth_;
    const void* const connection_;
    base::Time claims_from_;
    base::Duration length_ = kFirstClaim;  // of its next claim
    bool is_in_line_ = false;              // changed by its own thread alone, under the mutex
    // Under the mutex of the window:
    Lacks lacks_ = Lacks::kHere;
    bool holds_ = false;
    base::Time holds_until_{};
    Waiter* next_ = nullptr;
  };

  static constexpr auto kPatience = std::chrono::milliseconds(20);
  /// A thread that needs more than one claim doubles the length of its claims, up to the longest:
  /// calls that are out may take long. The longest leaves time for other calls of some seconds.
  static constexpr auto kFirstClaim = std::chrono::milliseconds(250);
  static constexpr auto kLongestClaim = std::chrono::seconds(4);

 private:
  static bool counts(uint32_t depth, size_t bytes) { return depth == 0 && bytes >= kLargeCall; }

  Waiter* first_claimer(uint32_t depth) const WEFT_REQUIRES(mutex_) {
    Waiter* each = line_;
    while (each && each->depth_ != depth) each = each->next_;
    return each;
  }
  bool claim(Waiter& waiter, Lacks lacks, base::Time now) {
    {
      const base::MutexLock lock(mutex_);
      waiter.lacks_ = lacks;
      if (!std::exchange(waiter.is_in_line_, true)) {
        Waiter** end = &line_;
        while (*end) end = &(*end)->next_;
        *end = &waiter;
      }
      if (!waiter.holds_) {
        if (now < no_claim_before_ || first_claimer(waiter.depth_) != &waiter) return false;
        waiter.holds_ = true;
        waiter.holds_until_ = now + waiter.length_;
        claims_.fetch_add(1, std::memory_order_relaxed);
      }
      if (now < waiter.holds_until_) return true;
      no_claim_before_ = now + waiter.length_;
    }
    leave_line(waiter);
    waiter.claims_from_ = now + waiter.length_;
    waiter.length_ = std::min<base::Duration>(2 * waiter.length_, kLongestClaim);
    return false;
  }
  void leave_line(Waiter& waiter) {
    bool held;
    {
      const base::MutexLock lock(mutex_);
      Waiter** at = &line_;
      while (*at != &waiter) at = &(*at)->next_;
      *at = std::exchange(waiter.next_, nullptr);
      waiter.is_in_line_ = false;
      held = std::exchange(waiter.holds_, false);
      if (held) claims_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (held) notify();
  }

  const size_t max_bytes_;
  // Not on a cache line with what threads change: every call looks at claims_, every answer at
  // waiting_.
  alignas(64) std::atomic<uint32_t> waiting_{0};
  std::atomic<uint32_t> claims_{0};  // that stand, of all depths; changed under the mutex
  alignas(64) std::atomic<size_t> used_{0};
  std::atomic<uint32_t> signs_{0};
  std::atomic<uint32_t> asleep_{0};

  mutable base::Mutex mutex_;
  // Threads that have lost patience, in that order. The first of each depth claims room.
  Waiter* line_ WEFT_GUARDED_BY(mutex_) = nullptr;
  base::Time no_claim_before_ WEFT_GUARDED_BY(mutex_) = base::Time::min();
};

}  // namespace weft::rpc

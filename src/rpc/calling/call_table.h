// The calls of one connection that have no outcome yet. A deterministic core: no thread, no clock.
//
// Ids are slot and generation, so a late or doubled reply meets an empty slot or a newer
// generation, never somebody else's call. Deadlines are a lower bound kept on the side and a sweep
// when it passes: there is no priority queue to keep in order.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace weft::rpc {

/// `Call` is any pointer type; the table does not own it.
template <typename Call>
class CallTable {
 public:
  using Time = base::Time;

  uint64_t open(Call call, Time deadline) {
    uint32_t index;
    if (free_ != kNone) {
      index = free_;
      free_ = slots_[index].next_free;
    } else {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& slot = slots_[index];
    slot.call = call;
    slot.deadline = deadline;
    ++open_;
    if (deadline < earliest_) earliest_ = deadline;
    return static_cast<uint64_t>(slot.generation) << 32 | index;
  }

  /// The call, which is then no longer in the table; null if it is not (any more).
  Call take(uint64_t id) {
    Slot* slot = find(id);
    return slot ? release(*slot) : nullptr;
  }
  bool contains(uint64_t id) const { return const_cast<CallTable*>(this)->find(id) != nullptr; }

  /// Takes all calls whose deadline is not after `now`.
  std::vector<Call> take_expired(Time now) {
    std::vector<Call> expired;
    if (now < earliest_) return expired;
    expired.reserve(open_);  // before a call is taken that could be lost
    earliest_ = Time::max();
    for (Slot& slot : slots_) {
      if (!slot.call) continue;
      if (slot.deadline <= now) {
        expired.push_back(release(slot));
      } else if (slot.deadline < earliest_) {
        earliest_ = slot.deadline;
      }
    }
    return expired;
  }

  std::vector<Call> take_all() {
    std::vector<Call> all;
    take_all(all);
    return all;
  }
  /// Needs no memory if `into` has room for size() calls.
  void take_all(std::vector<Call>& into) {
    into.reserve(into.size() + open_);
    for (Slot& slot : slots_) {
      if (slot.call) into.push_back(release(slot));
    }
    earliest_ = Time::max();
  }

  template <typename F>
  void for_each(const F& f) const {
    for (const Slot& slot : slots_) {
      if (slot.call) f(slot.call);
    }
  }

  /// No call expires before this; Time::max() when none ever does.
  Time earliest_deadline() const { return earliest_; }
  size_t size() const { return open_; }
  bool empty() const { return open_ == 0; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    Call call = nullptr;
    Time deadline;
    uint32_t generation = 1;
    uint32_t next_free = kNone;
  };

  Slot* find(uint64_t id) {
    const auto index = static_cast<uint32_t>(id);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.call && slot.generation == id >> 32 ? &slot : nullptr;
  }
  Call release(Slot& slot) {
    Call call = slot.call;
    slot.call = nullptr;
    ++slot.generation;
    slot.next_free = free_;
    free_ = static_cast<uint32_t>(&slot - slots_.data());
    --open_;
    return call;
  }

  std::vector<Slot> slots_;
  uint32_t free_ = kNone;
  size_t open_ = 0;
  Time earliest_ = Time::max();
};

}  // namespace weft::rpc

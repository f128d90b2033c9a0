// What wants to be looked at by the pulse, once a tick, while something happens there.
//
// A connection that nobody uses is not in the list, so a tick costs as much as there is activity,
// however large the group.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "weft/detail/ref_counted.h"

namespace weft::rpc {

/// Something that may be in the list.
class Ticking : public detail::RefCounted {
 public:
  /// Called by the pulse. False: there is nothing more to look at, until TickList::add() is called
  /// again. State that on_tick() bases its answer on must change before add() is called, or under
  /// the lock under which add() is called.
  virtual bool on_tick() = 0;

 protected:
  ~Ticking() override = default;

 private:
  friend class TickList;
  std::atomic<bool> listed_{false};
};

class TickList {
 public:
  /// Any thread; cheap for something that is in the list.
  void add(Ticking& ticking) {
    if (ticking.listed_.load(std::memory_order_seq_cst)) return;
    if (ticking.listed_.exchange(true, std::memory_order_seq_cst)) return;
    try {
      const base::MutexLock lock(mutex_);
      if (!closed_) list_.push_back(detail::Ref<Ticking>::share(&ticking));
    } catch (...) {  // no memory
      ticking.listed_.store(false, std::memory_order_seq_cst);
      throw;
    }
  }

  /// Called by the pulse. If a tick throws, those it has not reached wait for the tick after the
  /// next.
  void on_tick() {
    {
      const base::MutexLock lock(mutex_);
      current_.swap(list_);
    }
    for (auto& each : current_) {
      // Not listed while it decides: an add() that comes meanwhile enters it again.
      each->listed_.store(false, std::memory_order_seq_cst);
      if (each->on_tick()) add(*each);
    }
    current_.clear();
  }

  /// Lets go of everything; nothing is added any more.
  void close() {
    std::vector<detail::Ref<Ticking>> left;  // destroyed without the lock
    {
      const base::MutexLock lock(mutex_);
      closed_ = true;
      left.swap(list_);
    }
  }

 private:
  std::vector<detail::Ref<Ticking>> current_;  // the pulse's own
  base::Mutex mutex_;
  std::vector<detail::Ref<Ticking>> list_ WEFT_GUARDED_BY(mutex_);
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc

// A thread that ticks every millisecond while there is activity, and sleeps while there is none.
//
// It watches what would cost too much to watch in hot paths: user code that holds up a loop, frames
// that wait to be sent together, a backlog that no thread works on.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::base {

class Pulse {
 public:
  Pulse() = default;
  ~Pulse() { stop(); }

  /// Listeners are added before start(); each is called once a tick and must be quick.
  void add(std::function<void()> on_tick) { listeners_.push_back(std::move(on_tick)); }
  void start();
  void stop();

  /// To be called when something has happened that a tick may have to look at. Cheap; any thread
  /// may call it.
  void touch() { touch(kBusy); }
  /// The same for what is looked at in the next ticks or not at all.
  void touch_briefly() { touch(kBriefly); }

 private:
  enum Activity : int { kNone, kBriefly, kBusy };
  void touch(Activity activity) {
    int known = activity_.load(std::memory_order_relaxed);
    do {
      if (known >= activity) return;
    } while (!activity_.compare_exchange_weak(known, activity, std::memory_order_seq_cst));
    if (asleep_.load(std::memory_order_seq_cst)) wake();
  }
  void run();
  void wake();
  void tick();
  void sleep_until_touched();

  std::vector<std::function<void()>> listeners_;
  std::atomic<int> activity_{kNone};  // since the last tick
  std::atomic<uint32_t> asleep_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace weft::base

// SPDX-License-Identifier: BSD-3-Clause
#include "base/pulse.h"

#include <algorithm>
#include <chrono>

#include "base/futex.h"
#include "base/thread_name.h"

namespace weft::base {

namespace {
constexpr auto kTick = std::chrono::milliseconds(1);
constexpr int kTicksAfterActivity = 50;
constexpr int kTicksAfterBriefActivity = 3;
}  // namespace

void Pulse::start() {
  thread_ = std::thread([this] {
    name_this_thread("weft-pulse");
    run();
  });
}

void Pulse::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_seq_cst);
  wake();
  thread_.join();
}

void Pulse::wake() {
  asleep_.store(0, std::memory_order_seq_cst);
  futex_wake_all(asleep_);
}

void Pulse::run() {
  int left = kTicksAfterActivity;  // ticks before this thread sleeps
  while (!stopping_.load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(kTick);
    tick();
    const int activity = activity_.exchange(kNone, std::memory_order_seq_cst);
    --left;
    if (activity == kBusy) left = kTicksAfterActivity;
    if (activity == kBriefly) left = std::max(left, kTicksAfterBriefActivity);
    if (left > 0) continue;
    sleep_until_touched();
    left = kTicksAfterBriefActivity;  // or more, as the next tick sees
  }
}

void Pulse::tick() {
  for (auto& on_tick : listeners_) {
    try {
      on_tick();
    } catch (const std::bad_alloc&) {
      // There may be memory at the next tick.
    }
  }
}

void Pulse::sleep_until_touched() {
  asleep_.store(1, std::memory_order_seq_cst);
  // `asleep_` is set before `activity_` is read: a touch() between the two sees that it has to wake
  // this thread.
  while (asleep_.load(std::memory_order_seq_cst) &&
         activity_.load(std::memory_order_seq_cst) == kNone &&
         !stopping_.load(std::memory_order_seq_cst)) {
    futex_wait(asleep_, 1, std::nullopt);
  }
  asleep_.store(0, std::memory_order_seq_cst);
}

}  // namespace weft::base

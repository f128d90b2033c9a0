// SPDX-License-Identifier: BSD-3-Clause
#include "support/stalls.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace weft::test {

namespace {

using TimePoint = std::chrono::steady_clock::time_point;
using namespace std::chrono_literals;

constexpr auto kNap = 1ms;
constexpr auto kWorthCounting = 5ms;
constexpr size_t kMostKept = 10'000;

class Watch {
 public:
  Watch() {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) std::thread([this, cpu] { watch(cpu); }).detach();
    }
  }

  std::chrono::nanoseconds between(TimePoint start, TimePoint end) {
    std::vector<Stall> stalls;
    {
      const std::lock_guard lock(mutex_);
      stalls.assign(stalls_.begin(), stalls_.end());
      // One that still lasts is known by the nap that should be over.
      for (const TimePoint& due : due_) stalls.push_back({due, end});
    }
    return time_covered(std::move(stalls), start, end);
  }

 private:
  void watch(int cpu) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    const sched_param real_time{.sched_priority = sched_get_priority_min(SCHED_FIFO)};
    if (pthread_setaffinity_np(pthread_self(), sizeof only, &only) != 0 ||
        pthread_setschedparam(pthread_self(), SCHED_FIFO, &real_time) != 0) {
      return;
    }
    std::unique_lock lock(mutex_);
    const size_t place = due_.size();
    due_.emplace_back();
    for (;;) {
      const TimePoint due = std::chrono::steady_clock::now() + kNap;
      due_[place] = due;
      lock.unlock();
      std::this_thread::sleep_until(due);
      const TimePoint woke = std::chrono::steady_clock::now();
      lock.lock();
      if (woke - due < kWorthCounting) continue;
      stalls_.push_back({due, woke});
      if (stalls_.size() > kMostKept) stalls_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<TimePoint> due_;  // by CPU: when its thread should run next
  std::deque<Stall> stalls_;
};

Watch& the_watch() {
  static auto* leaked = new Watch;
  return *leaked;
}

}  // namespace

std::chrono::nanoseconds time_covered(std::vector<Stall> stalls, TimePoint start, TimePoint end) {
  std::sort(stalls.begin(), stalls.end(),
            [](const Stall& a, const Stall& b) { return a.start < b.start; });
  std::chrono::nanoseconds sum{};
  TimePoint counted = start;
  for (const Stall& each : stalls) {
    const TimePoint from = std::max(each.start, counted);
    const TimePoint to = std::min(each.end, end);
    if (each.end - each.start < kWorthCounting || to <= from) continue;
    sum += to - from;
    counted = to;
  }
  return sum;
}

void watch_stalls() { the_watch(); }

std::chrono::nanoseconds stalled_between(TimePoint start, TimePoint end) {
  return the_watch().between(start, end);
}

}  // namespace weft::test

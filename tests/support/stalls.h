// Time in which the machine stood still. A virtual machine loses a CPU to others for tenths of a
// second now and then; a bound on what Weft does in time holds for the time that Weft was given.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <vector>

namespace weft::test {

struct Stall {
  std::chrono::steady_clock::time_point start;
  std::chrono::steady_clock::time_point end;
};

/// How much of the time from `start` to `end` any of `stalls` covers, but for those of under 5 ms.
std::chrono::nanoseconds time_covered(std::vector<Stall> stalls,
                                      std::chrono::steady_clock::time_point start,
                                      std::chrono::steady_clock::time_point end);

/// How much of the time from `start` to `end` a CPU was withheld for over 5 ms from a thread that
/// nothing else on this machine comes before. Counted from the first call of watch_stalls() on, and
/// only by a process that may have such threads (SCHED_FIFO): by others no time is counted.
std::chrono::nanoseconds stalled_between(std::chrono::steady_clock::time_point start,
                                         std::chrono::steady_clock::time_point end);

/// Starts a thread for each CPU, once.
void watch_stalls();

/// A stopwatch that stands still while the machine does.
class Stopwatch {
 public:
  Stopwatch() { watch_stalls(); }
  std::chrono::nanoseconds read() const {
    const auto now = std::chrono::steady_clock::now();
    return now - start_ - stalled_between(start_, now);
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace weft::test

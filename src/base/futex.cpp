// SPDX-License-Identifier: BSD-3-Clause
#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace weft::base {

namespace {
uint32_t* address(std::atomic<uint32_t>& word) { return reinterpret_cast<uint32_t*>(&word); }

int flag(FutexOf threads) { return threads == FutexOf::kThisProcess ? FUTEX_PRIVATE_FLAG : 0; }
}  // namespace

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected,
                std::optional<std::chrono::steady_clock::time_point> until, FutexOf threads) {
  timespec at{};
  if (until) {
    // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, the clock of steady_clock.
    const auto since = until->time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    at.tv_sec = seconds.count();
    at.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  }
  syscall(SYS_futex, address(word), FUTEX_WAIT_BITSET | flag(threads), expected,
          until ? &at : nullptr, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake_all(std::atomic<uint32_t>& word, FutexOf threads) {
  syscall(SYS_futex, address(word), FUTEX_WAKE | flag(threads), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace weft::base

// Sleeping on a 32-bit word: the cheapest wake-up Linux has.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace weft::base {

/// Which threads sleep on a word: those of this process, or of all that share its memory.
enum class FutexOf { kThisProcess, kAllProcesses };

/// Sleeps while `word == expected`, until woken or `until` passed. May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected,
                std::optional<std::chrono::steady_clock::time_point> until,
                FutexOf threads = FutexOf::kThisProcess);
void futex_wake_all(std::atomic<uint32_t>& word, FutexOf threads = FutexOf::kThisProcess);

}  // namespace weft::base

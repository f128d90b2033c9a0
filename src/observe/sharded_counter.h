// Counters for what many threads count at the same time.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::observe {

inline constexpr size_t kShards = 16;

/// The shard of this thread. Two threads seldom share one.
inline size_t this_shard() noexcept {
  static std::atomic<size_t> next{0};
  thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed) % kShards;
  return mine;
}

/// Only grows.
class ShardedCounter {
 public:
  void add(uint64_t n = 1) noexcept {
    shards_[this_shard()].value.fetch_add(n, std::memory_order_release);
  }
  /// At least what was added before this was called.
  uint64_t value() const noexcept {
    uint64_t sum = 0;
    for (const Shard& shard : shards_) sum += shard.value.load(std::memory_order_acquire);
    return sum;
  }

 private:
  struct alignas(64) Shard {
    std::atomic<uint64_t> value{0};
  };
  std::array<Shard, kShards> shards_;
};

/// How many of what began has not ended.
class InProgress {
 public:
  void begin() noexcept { begun_.add(); }
  void end() noexcept { ended_.add(); }

  /// What ended is counted first, so this is never less than what there was at some moment: zero
  /// means that there was none.
  uint64_t value() const noexcept {
    const uint64_t ended = ended_.value();
    return begun_.value() - ended;
  }
  uint64_t begun() const noexcept { return begun_.value(); }

 private:
  ShardedCounter begun_, ended_;
};

}  // namespace weft::observe

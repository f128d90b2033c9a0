// Latencies in four buckets per power of two, from 1 ns to half an hour: two instructions to
// record.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace weft::observe {

class Histogram {
 public:
  void record(int64_t nanoseconds) noexcept {
    const uint64_t value = nanoseconds > 0 ? static_cast<uint64_t>(nanoseconds) : 0;
    add(buckets_[bucket_of(value)], 1);
    add(sum_, value);
  }

  /// Adds the samples of another, which may be recording.
  void add(const Histogram& other) noexcept;

  uint64_t count() const noexcept;
  uint64_t sum() const noexcept { return sum_.load(std::memory_order_relaxed); }
  /// An upper bound of the p-quantile in nanoseconds, at most 25 % too high; 0 without samples.
  uint64_t quantile(double p) const noexcept;

 private:
  static constexpr size_t kBuckets = 168;
  // Not fetch_add, which is slower. A race of two threads may lose a sample; that is
  // acceptable.
  static void add(std::atomic<uint64_t>& counter, uint64_t n) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  static size_t bucket_of(uint64_t value) noexcept {
    if (value < 4) return value;
    const unsigned log2 = 63 - std::countl_zero(value);
    const size_t bucket = 4 * (log2 - 1) + ((value >> (log2 - 2)) & 3);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
  static uint64_t upper_bound_of(size_t bucket) noexcept {
    if (bucket < 4) return bucket;
    const unsigned log2 = static_cast<unsigned>(bucket / 4 + 1);
    return ((4 + bucket % 4 + 1) << (log2 - 2)) - 1;
  }

  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
  std::atomic<uint64_t> sum_{0};
};

}  // namespace weft::observe

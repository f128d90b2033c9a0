// SPDX-License-Identifier: BSD-3-Clause
#include "observe/histogram.h"

namespace weft::observe {

void Histogram::add(const Histogram& other) noexcept {
  for (size_t i = 0; i < kBuckets; ++i)
    add(buckets_[i], other.buckets_[i].load(std::memory_order_relaxed));
  add(sum_, other.sum());
}

uint64_t Histogram::count() const noexcept {
  uint64_t total = 0;
  for (const auto& bucket : buckets_) total += bucket.load(std::memory_order_relaxed);
  return total;
}

uint64_t Histogram::quantile(double p) const noexcept {
  const uint64_t total = count();
  if (total == 0) return 0;
  const auto rank = static_cast<uint64_t>(p * static_cast<double>(total - 1)) + 1;
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i].load(std::memory_order_relaxed);
    if (seen >= rank) return upper_bound_of(i);
  }
  return upper_bound_of(kBuckets - 1);
}

}  // namespace weft::observe

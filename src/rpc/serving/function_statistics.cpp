// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/function_statistics.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "rpc/functions/function_table.h"

namespace weft::rpc {

namespace {
constexpr uint32_t kLoadedLater = 64;
constexpr int64_t kLittle = 1'000;  // ns: a difference that matters to nobody
}  // namespace

LatencySummary summarize(const observe::Histogram& histogram) {
  LatencySummary summary;
  summary.count = histogram.count();
  if (summary.count == 0) return summary;
  summary.mean_us =
      1e-3 * static_cast<double>(histogram.sum()) / static_cast<double>(summary.count);
  summary.p50_us = 1e-3 * static_cast<double>(histogram.quantile(0.5));
  summary.p90_us = 1e-3 * static_cast<double>(histogram.quantile(0.9));
  summary.p99_us = 1e-3 * static_cast<double>(histogram.quantile(0.99));
  return summary;
}

FunctionStatistics::FunctionStatistics()
    : functions_(function_count() + kLoadedLater),
      usual_(new std::atomic<int64_t>[functions_]()),
      cells_(new std::atomic<Cell*>[observe::kShards * functions_]()) {}

FunctionStatistics::~FunctionStatistics() {
  for (size_t i = 0; i < observe::kShards * functions_; ++i) delete cells_[i].load();
}

// Null: there is no memory.
FunctionStatistics::Cell* FunctionStatistics::cell_of(uint32_t place) noexcept {
  std::atomic<Cell*>& slot = cells_[observe::this_shard() * functions_ + place];
  Cell* cell = slot.load(std::memory_order_acquire);
  if (cell) return cell;
  std::unique_ptr<Cell> fresh(new (std::nothrow) Cell);
  if (!fresh || slot.compare_exchange_strong(cell, fresh.get(), std::memory_order_acq_rel))
    return fresh.release();
  return cell;  // another thread of this shard was quicker
}

void FunctionStatistics::record(uint32_t function, bool failed, base::Duration took) noexcept {
  const uint32_t place = place_of(function);
  Cell* const cell = cell_of(place);
  if (!cell) return;
  cell->served.fetch_add(1, std::memory_order_relaxed);
  if (failed) cell->failed.fetch_add(1, std::memory_order_relaxed);
  if (took.count() < 0) return;
  cell->handler.record(took.count());
  std::atomic<int64_t>& usual = usual_[place];
  const int64_t before = usual.load(std::memory_order_relaxed);
  // A thread that lost its CPU for a moment does not make a short function a long one.
  const int64_t most = before == 0 ? took.count() : std::max(before, 2 * kLittle);
  const int64_t difference = std::min(took.count() - before, most);
  if (before == 0 || std::abs(difference) > std::max(kLittle, before / 4))
    usual.store(std::max<int64_t>(1, before + difference / 8), std::memory_order_relaxed);
}

void FunctionStatistics::takes_more_than(uint32_t function, base::Duration time) {
  std::atomic<int64_t>& usual = usual_[place_of(function)];
  if (usual.load(std::memory_order_relaxed) < time.count())
    usual.store(time.count(), std::memory_order_relaxed);
}

std::vector<FunctionStats> FunctionStatistics::summarize() const {
  std::vector<FunctionStats> all;
  for (uint32_t place = 0; place < functions_; ++place) {
    FunctionStats stats;
    observe::Histogram handler;
    for (size_t shard = 0; shard < observe::kShards; ++shard) {
      const Cell* cell = cells_[shard * functions_ + place].load(std::memory_order_acquire);
      if (!cell) continue;
      stats.served += cell->served.load(std::memory_order_relaxed);
      stats.failed += cell->failed.load(std::memory_order_relaxed);
      handler.add(cell->handler);
    }
    if (stats.served == 0) continue;
    const detail::FunctionEntry* entry = function_at(place);
    stats.name = entry ? entry->name : "(others)";
    stats.handler = rpc::summarize(handler);
    all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace weft::rpc

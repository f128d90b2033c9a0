// SPDX-License-Identifier: BSD-3-Clause
#include "arena/extents.h"

#include <algorithm>
#include <iterator>

namespace weft::arena {

Extents::Extents(size_t bytes) : touched_in_(bytes / kChunk) { add_free({0, bytes}); }

std::optional<Extent> Extents::allocate(size_t bytes) {
  const size_t wanted = rounded(bytes);
  if (wanted < bytes) return std::nullopt;
  const auto found = free_by_size_.lower_bound({wanted, 0});
  if (found == free_by_size_.end()) return std::nullopt;
  const Extent whole{found->second, found->first};
  const Extent taken{whole.start, wanted};
  remove_free(whole);
  if (whole.bytes > wanted) add_free({taken.end(), whole.bytes - wanted});
  used_extents_.emplace(taken.start, taken.bytes);
  used_ += wanted;
  touch(taken);
  return taken;
}

void Extents::free(size_t start) {
  const auto found = used_extents_.find(start);
  Extent extent{start, found->second};
  used_extents_.erase(found);
  used_ -= extent.bytes;
  touch(extent);
  const auto after = free_.lower_bound(start);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    const Extent neighbour{before->first, before->second};
    if (neighbour.end() == extent.start) {
      remove_free(neighbour);
      extent = {neighbour.start, neighbour.bytes + extent.bytes};
    }
  }
  if (after != free_.end() && after->first == extent.end()) {
    const Extent neighbour{after->first, after->second};
    remove_free(neighbour);
    extent.bytes += neighbour.bytes;
  }
  add_free(extent);
}

std::optional<Extent> Extents::find(size_t at) const {
  auto found = used_extents_.upper_bound(at);
  if (found == used_extents_.begin()) return std::nullopt;
  --found;
  const Extent extent{found->first, found->second};
  return at < extent.end() ? std::optional(extent) : std::nullopt;
}

std::vector<Extent> Extents::take_stale() {
  std::vector<Extent> stale;
  const uint32_t now = period_++;
  for (const auto& [start, bytes] : free_) {
    const size_t first = (start + kChunk - 1) / kChunk;
    const size_t end = (start + bytes) / kChunk;
    for (size_t chunk = first; chunk < end; ++chunk) {
      if (touched_in_[chunk] == 0 || touched_in_[chunk] == now) continue;
      touched_in_[chunk] = 0;
      const Extent extent{chunk * kChunk, kChunk};
      if (!stale.empty() && stale.back().end() == extent.start) {
        stale.back().bytes += kChunk;
      } else {
        stale.push_back(extent);
      }
    }
  }
  return stale;
}

void Extents::add_free(Extent extent) {
  free_.emplace(extent.start, extent.bytes);
  free_by_size_.emplace(extent.bytes, extent.start);
}

void Extents::remove_free(const Extent& extent) {
  free_.erase(extent.start);
  free_by_size_.erase({extent.bytes, extent.start});
}

void Extents::touch(const Extent& extent) {
  const size_t last = (extent.end() - 1) / kChunk;
  for (size_t chunk = extent.start / kChunk; chunk <= last; ++chunk) touched_in_[chunk] = period_;
}

}  // namespace weft::arena

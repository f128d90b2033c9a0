// SPDX-License-Identifier: BSD-3-Clause
#include "arena/extents.h"

#include <algorithm>
#include <iterator>

namespace weft::arena {

Extents::Extents(size_t bytes) : touched_in_(bytes / kChunk) {
  parts_.emplace(0, Part{bytes, {}});
  free_by_size_.emplace(bytes, 0);
}

std::optional<Extent> Extents::allocate(size_t bytes) {
  const size_t wanted = rounded(bytes);
  if (wanted < bytes) return std::nullopt;
  const auto found = free_by_size_.lower_bound({wanted, 0});
  if (found == free_by_size_.end()) return std::nullopt;
  const Extent whole{found->second, found->first};
  const Extent taken{whole.start, wanted};
  if (whole.bytes > wanted) split(whole, wanted);
  Part& part = parts_.find(taken.start)->second;
  part.bytes = wanted;
  part.by_size = free_by_size_.extract(found);
  used_ += wanted;
  touch(taken);
  return taken;
}

// The second part of what is free becomes one of its own. The first one is left to the caller.
void Extents::split(const Extent& whole, size_t at) {
  const Extent rest{whole.start + at, whole.bytes - at};
  const auto part = parts_.emplace(rest.start, Part{rest.bytes, {}}).first;
  try {
    free_by_size_.emplace(rest.bytes, rest.start);
  } catch (...) {
    parts_.erase(part);
    throw;
  }
}

void Extents::free(size_t start) noexcept {
  auto part = parts_.find(start);
  used_ -= part->second.bytes;
  touch({start, part->second.bytes});
  SizeNode by_size = std::move(part->second.by_size);
  if (const auto after = std::next(part); after != parts_.end() && after->second.is_free()) {
    free_by_size_.erase({after->second.bytes, after->first});
    part = join(part, after);
  }
  if (part != parts_.begin() && std::prev(part)->second.is_free()) {
    const auto before = std::prev(part);
    free_by_size_.erase({before->second.bytes, before->first});
    part = join(before, part);
  }
  by_size.value() = {part->second.bytes, part->first};
  free_by_size_.insert(std::move(by_size));
}

Extents::Parts::iterator Extents::join(Parts::iterator part, Parts::iterator after) noexcept {
  part->second.bytes += after->second.bytes;
  parts_.erase(after);
  return part;
}

std::optional<Extent> Extents::find(size_t at) const {
  auto found = parts_.upper_bound(at);
  if (found == parts_.begin()) return std::nullopt;
  --found;
  const Extent extent{found->first, found->second.bytes};
  return !found->second.is_free() && at < extent.end() ? std::optional(extent) : std::nullopt;
}

template <typename F>
void Extents::each_free_chunk(const F& visit) const {
  for (const auto& [start, part] : parts_) {
    if (!part.is_free()) continue;
    const size_t first = (start + kChunk - 1) / kChunk;
    const size_t end = (start + part.bytes) / kChunk;
    for (size_t chunk = first; chunk < end; ++chunk) visit(chunk);
  }
}

std::vector<Extent> Extents::take_stale(size_t most) {
  std::vector<Extent> stale;
  each_free_chunk([&](size_t chunk) {
    if (most < kChunk || touched_in_[chunk] == 0 || touched_in_[chunk] == period_) return;
    const Extent extent{chunk * kChunk, kChunk};
    if (!stale.empty() && stale.back().end() == extent.start) {
      stale.back().bytes += kChunk;
    } else {
      stale.push_back(extent);
    }
    touched_in_[chunk] = 0;
    most -= kChunk;
  });
  return stale;
}

bool Extents::may_go_stale() const {
  bool found = false;
  each_free_chunk([&](size_t chunk) { found = found || touched_in_[chunk] != 0; });
  return found;
}

void Extents::touch(const Extent& extent) noexcept {
  const size_t last = (extent.end() - 1) / kChunk;
  for (size_t chunk = extent.start / kChunk; chunk <= last; ++chunk) touched_in_[chunk] = period_;
}

}  // namespace weft::arena

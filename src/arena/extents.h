// Which parts of a range are used. A core without memory of its own: it only counts.
//
// The smallest free part that is large enough is taken, from its front: what was used a moment ago,
// and whose pages are there, is used again first.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace weft::arena {

struct Extent {
  size_t start = 0;
  size_t bytes = 0;

  size_t end() const { return start + bytes; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

class Extents {
 public:
  /// All sizes are rounded up to this. It is a multiple of the page size of every system.
  static constexpr size_t kUnit = 64 * 1024;
  /// Pages are given back in parts of this size.
  static constexpr size_t kChunk = 2 << 20;

  /// `bytes` is a multiple of kChunk.
  explicit Extents(size_t bytes);

  /// Nothing if no free part is large enough. `bytes` is not zero.
  std::optional<Extent> allocate(size_t bytes);
  /// `start` is that of an extent that allocate() gave. Needs no memory, so that it cannot fail.
  void free(size_t start) noexcept;

  /// The used extent that `at` lies in.
  std::optional<Extent> find(size_t at) const;
  size_t used() const { return used_; }

  /// Free chunks that were used at some time but not since the last end_period(), `most` bytes at
  /// most, adjacent ones as one extent. They count as never used from now on.
  std::vector<Extent> take_stale(size_t most = SIZE_MAX);
  void end_period() { ++period_; }
  /// Whether take_stale() will have something if nothing is allocated meanwhile.
  bool may_go_stale() const;

  static constexpr size_t rounded(size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

 private:
  using BySize = std::set<std::pair<size_t, size_t>>;  // bytes, start
  using SizeNode = BySize::node_type;
  struct Part {
    size_t bytes;
    SizeNode by_size;  // while it is used: what enters it among the free ones again

    bool is_free() const { return by_size.empty(); }
  };
  using Parts = std::map<size_t, Part>;  // by start

  void split(const Extent& whole, size_t at);
  Parts::iterator join(Parts::iterator part, Parts::iterator after) noexcept;
  void touch(const Extent& extent) noexcept;
  template <typename F>
  void each_free_chunk(const F& visit) const;

  Parts parts_;  // of two that are adjacent, at least one is used
  BySize free_by_size_;
  size_t used_ = 0;

  uint32_t period_ = 1;
  std::vector<uint32_t> touched_in_;  // by chunk: the period of its last use; 0: never used
};

}  // namespace weft::arena

// How much may be unanswered over one connection before further callers wait. A deterministic core.
//
// Each nesting depth has a window of its own. A call waits only for calls of its own depth, and
// those depend only on deeper calls, so a call never waits for room that its own caller holds.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::rpc {

/// Calls of fewer bytes are small: they are not held up for the sake of large ones.
inline constexpr size_t kLargeCall = 4096;

class SendWindow {
 public:
  SendWindow(size_t calls, size_t bytes) : max_calls_(calls), max_bytes_(bytes) {}

  /// A call larger than the whole window goes when nothing else of its depth is out.
  bool has_room(uint32_t depth, size_t bytes) const {
    if (depth >= used_.size()) return true;
    const Use& use = used_[depth];
    if (use.calls == 0) return true;
    return use.calls < max_calls_ && use.bytes + bytes <= max_bytes_;
  }
  /// The same if small calls that are out do not count.
  bool has_room_beside_small(uint32_t depth, size_t bytes) const {
    if (depth >= used_.size()) return true;
    const Use& use = used_[depth];
    const size_t calls = use.calls - use.small_calls;
    if (calls == 0) return true;
    return calls < max_calls_ && use.bytes - use.small_bytes + bytes <= max_bytes_;
  }
  /// At least a quarter is free.
  bool has_ample_room(uint32_t depth) const {
    if (depth >= used_.size()) return true;
    const Use& use = used_[depth];
    return use.calls <= max_calls_ - max_calls_ / 4 && use.bytes <= max_bytes_ - max_bytes_ / 4;
  }
  /// open() needs no memory afterwards.
  void prepare(uint32_t depth) {
    if (depth >= used_.size()) used_.resize(depth + 1);
  }
  void open(uint32_t depth, size_t bytes) {
    prepare(depth);
    Use& use = used_[depth];
    ++use.calls;
    use.bytes += bytes;
    if (bytes >= kLargeCall) return;
    ++use.small_calls;
    use.small_bytes += bytes;
  }
  void close(uint32_t depth, size_t bytes) {
    Use& use = used_[depth];
    --use.calls;
    use.bytes -= bytes;
    if (bytes >= kLargeCall) return;
    --use.small_calls;
    use.small_bytes -= bytes;
  }

 private:
  struct Use {
    size_t calls = 0;
    size_t bytes = 0;
    size_t small_calls = 0;  // of them
    size_t small_bytes = 0;
  };
  size_t max_calls_;
  size_t max_bytes_;
  std::vector<Use> used_;
};

}  // namespace weft::rpc

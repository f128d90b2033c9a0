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
    ++used_[depth].calls;
    used_[depth].bytes += bytes;
  }
  void close(uint32_t depth, size_t bytes) {
    --used_[depth].calls;
    used_[depth].bytes -= bytes;
  }

 private:
  struct Use {
    size_t calls = 0;
    size_t bytes = 0;
  };
  size_t max_calls_;
  size_t max_bytes_;
  std::vector<Use> used_;
};

}  // namespace weft::rpc

// An operation that is going on, as the channel sees it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collective/channels/channel.h"

namespace weft::collective {

// Operations are numbered from zero; the departure at the end of epoch e has the number
// kDepartures + e.
inline constexpr uint64_t kDepartures = uint64_t{1} << 63;

inline bool asks_membership(const Signature& signature) {
  return signature.kind == static_cast<uint8_t>(Kind::kMembership);
}

struct Channel::Operation : detail::RefCounted {
  uint64_t number = 0;
  Signature signature;
  std::vector<int> ranks;
  std::unique_ptr<Algorithm> algorithm;
  base::Time began{}, deadline = base::Time::max();
  const detail::Ref<detail::FutureState<Outcome>> outcome =
      detail::make_ref<detail::FutureState<Outcome>>();

  /// Whether a thread may be using the operation's tensors: the last such thread ends the operation
  /// if the channel has failed.
  bool in_use() const {
    return (advancing && !queued) || std::any_of(using_chunks.begin(), using_chunks.end(),
                                                 [](size_t threads) { return threads > 0; });
  }

  Future<Outcome> future() const { return detail::FutureAccess::make<Outcome>(outcome); }

  // Under the channel's lock.
  uint8_t phase = 0;
  std::vector<std::vector<std::optional<Tensors>>> arrived;  // by phase and place
  std::vector<size_t> using_chunks;  // by phase: threads that use a chunk at once
  size_t unsent = 0;                 // chunks that have not arrived at their receivers
  bool queued = false;               // the thread that is about to work on it has not begun
  bool advancing = false;            // a thread works on this operation, or is about to
  bool heavy = false;                // too much work for a thread that serves calls
};

}  // namespace weft::collective

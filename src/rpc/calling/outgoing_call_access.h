// The RPC layer's view of a call whose typed half is the user's.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "weft/detail/function_entry.h"
#include "weft/detail/outgoing_call.h"

namespace weft::rpc {

struct OutgoingCallAccess {
  using Call = detail::OutgoingCall;
  static detail::Ref<CallingLink>& link(Call& call) { return call.link_; }
  static const detail::FunctionEntry*& function(Call& call) { return call.function_; }
  static detail::Ref<Companion>& companion(Call& call) { return call.companion_; }
  static uint64_t& id(Call& call) { return call.id_; }
  static detail::FramePosition& ends_at(Call& call) { return call.ends_at_; }
  static size_t& bytes(Call& call) { return call.bytes_; }
  static uint32_t& depth(Call& call) { return call.depth_; }
  static detail::SteadyTime& started(Call& call) { return call.started_; }
  static detail::SteadyTime& deadline(Call& call) { return call.deadline_; }
  /// For the calling thread: true if nobody asked it to make the call anew; from now on nobody can.
  static bool finish_starting(Call& call) {
    uint8_t expected = Call::kStarting;
    return call.phase_.compare_exchange_strong(expected, Call::kStarted) ||
           expected == Call::kStarted;
  }
  /// For other threads: true if the calling thread will make the call anew.
  static bool ask_to_make_anew(Call& call) {
    uint8_t expected = Call::kStarting;
    return call.phase_.compare_exchange_strong(expected, Call::kMakeAnew);
  }
  static bool is_left_to_continuation(const Call& call) {
    return call.left_to_continuation_.load(std::memory_order_acquire);
  }
  static bool& listened_to(Call& call) { return call.listened_to_; }
  static std::atomic<uint32_t>& in_line(Call& call) { return call.in_line_; }
  static std::vector<detail::Ref<detail::RefCounted>>& kept(Call& call) { return call.kept_; }
  static void never_anew(Call& call) { call.phase_.store(Call::kStarted); }
  static bool sleep(Call& call, std::optional<detail::SteadyTime> until) {
    return call.sleep(until);
  }
  static void mark_sleeper(Call& call) { call.mark(); }
  static void nudge(Call& call) { call.nudge(); }
};

}  // namespace weft::rpc

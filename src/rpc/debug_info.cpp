// SPDX-License-Identifier: BSD-3-Clause
#include "weft/debug_info.h"

#include <ostream>

#include <fmt/format.h>

namespace weft {

namespace {

std::string latency(const LatencySummary& summary) {
  return fmt::format("mean {:>9.1f} us  p50 {:>9.1f}  p90 {:>9.1f}  p99 {:>9.1f}", summary.mean_us,
                     summary.p50_us, summary.p90_us, summary.p99_us);
}

}  // namespace

std::string to_text(const CallInFlight& call) {
  const bool outgoing = call.direction == CallInFlight::Direction::kOutgoing;
  return fmt::format("call of {} {} {}, {} for {:.1f} s", call.function, outgoing ? "to" : "from",
                     call.worker, call.state, call.seconds);
}

std::ostream& operator<<(std::ostream& out, const DebugInfo& info) {
  out << "worker " << info.worker << '\n';
  for (const auto& [name, value] : info.counters) {
    out << fmt::format("  {:<28} {}\n", name, value);
  }
  for (const FunctionStats& function : info.functions) {
    out << fmt::format("  function {:<32} served {:>9}  failed {:>7}  {}\n", function.name,
                       function.served, function.failed, latency(function.handler));
  }
  for (const PeerStats& peer : info.peers) {
    out << fmt::format(
        "  peer {:<20} {:<10} {:<4} calls {:>9}  failed {:>7}  connects {:>3}  handovers {:>7}  "
        "sent "
        "{:>12} B  received {:>12} B  {}\n",
        peer.name, peer.state, peer.transport, peer.calls, peer.failed, peer.connects,
        peer.handovers, peer.bytes_sent, peer.bytes_received, latency(peer.round_trip));
    if (!peer.detour.empty()) out << "    not through shared memory: " << peer.detour << '\n';
  }
  for (const CallInFlight& call : info.calls) out << "  " << to_text(call) << '\n';
  return out;
}

}  // namespace weft

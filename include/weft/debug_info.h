// Counters and latencies of an agent since it started.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "weft/export.h"

namespace weft {

struct LatencySummary {
  uint64_t count = 0;
  double mean_us = 0, p50_us = 0, p90_us = 0, p99_us = 0;
};

struct FunctionStats {
  std::string name;
  uint64_t served = 0;     // calls answered here, with an error too
  uint64_t failed = 0;     // of these, with an error
  LatencySummary handler;  // time inside the function
};

struct PeerStats {
  std::string name;
  std::string state;      // "idle", "connecting", "connected", "closed"
  std::string transport;  // how its bytes go, or went last: "tcp", "shm"
  std::string detour;     // why not through shared memory, if that was tried
  uint64_t calls = 0, failed = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t connects = 0;
  uint64_t handovers = 0;  // times a caller left it to another thread to receive replies
  LatencySummary round_trip;
};

/// A call without an outcome, as one of its two workers sees it.
struct CallInFlight {
  enum class Direction { kOutgoing, kIncoming };
  Direction direction = Direction::kOutgoing;
  std::string function;
  std::string worker;  // the one that is called, or that calls
  double seconds = 0;  // since the call was made, or arrived
  // Outgoing: "connecting", "unsent", "sent". Incoming: "arrived", "in the backlog", "waiting for
  // its arguments", "running", "returned a future"; then ", given up by its caller" if it was.
  std::string state;
};
WEFT_API std::string to_text(const CallInFlight& call);

struct DebugInfo {
  std::string worker;
  std::map<std::string, uint64_t> counters;  // e.g. "calls.outstanding", "replies.late"
  std::vector<FunctionStats> functions;
  std::vector<PeerStats> peers;
  std::vector<CallInFlight> calls;  // users' and Weft's own
};

/// A table for people.
WEFT_API std::ostream& operator<<(std::ostream& out, const DebugInfo& info);

}  // namespace weft

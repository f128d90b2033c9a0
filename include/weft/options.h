// The options of an agent.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "weft/destination.h"

namespace weft {

struct Options {
  // Joining a group. -1 and "" mean: from the environment (RANK, WORLD_SIZE, WEFT_RENDEZVOUS; if
  // the last one is not set, env://).
  int rank = -1;
  int world_size = -1;
  std::string init_method = {};  // env://, tcp://host:port or file:///path
  Timeout init_timeout = std::chrono::seconds(60);

  // The address on which this worker listens and which it tells the others: "host" or "host:port".
  // Default: WEFT_ADDRESS of the environment, else 127.0.0.1 and a free port, which only processes
  // of this host can reach.
  std::string address = {};

  // How this worker reaches others. Nearest: workers of the same host and user through shared
  // memory, others over TCP. Default: what WEFT_TRANSPORT says, "tcp" or "nearest", else nearest.
  enum class Transport { kDefault, kTcp, kNearest };
  Transport transport = Transport::kDefault;

  // Timeout of calls that are given none. Zero: they wait as long as the peer lives.
  Timeout default_timeout = std::chrono::seconds(60);

  // How many functions that others call may use a CPU at the same time. One that waits does not
  // count; one that waits where Weft cannot see it does not count after about a millisecond. Zero:
  // as many as there are CPUs, 16 at least.
  size_t handler_threads = 0;
  // How long a thread polls before it sleeps. Zero: not at all. Ignored if there is only one CPU.
  Timeout spin = std::chrono::microseconds(20);

  // A peer that is silent for `suspect_after`, and has not answered a ping for a
  // `heartbeat_interval`, is logged; one that is silent for `dead_after` counts as lost.
  Timeout heartbeat_interval = std::chrono::seconds(1);
  Timeout suspect_after = std::chrono::seconds(3);
  Timeout dead_after = std::chrono::seconds(8);

  // An owner drops the references of a holder that it has not heard of for so long. A holder renews
  // them three times in this time.
  Timeout rref_lease = std::chrono::seconds(10);
  // Whether shutdown logs the references that still exist, with their owners and holders.
  bool rref_leak_report = false;

  // So many calls over one connection and bytes to one peer may be unanswered; further callers
  // wait.
  size_t window_calls = 1024;
  size_t window_bytes = size_t{64} << 20;

  // How many connections to one peer this worker may have, 8 at most. The threads of the program
  // are spread over them; all calls of a thread go over the same one, so they keep their order.
  // Zero: half as many as there are CPUs.
  size_t connections_per_peer = 0;

  // A call that is nested deeper than this is refused with kLimitExceeded.
  size_t max_call_depth = 1000;
  // How many threads may run functions that others call, blocked ones included. Further calls are
  // refused with kLimitExceeded.
  size_t max_handler_threads = 4096;
  // So many bytes of memory of large received tensors are kept for later tensors.
  size_t receive_pool_bytes = size_t{256} << 20;
  // So many bytes of tensors may lie in memory that this process shares with others of its host;
  // further tensors go through smaller buffers, which takes longer. It counts for all agents of the
  // process. Default: what was said before, at first a quarter of the host's memory.
  std::optional<size_t> shared_memory_bytes = {};
};

}  // namespace weft

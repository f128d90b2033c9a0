// Everything an agent can be told, with defaults that suit most.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "weft/destination.h"

namespace weft {

struct Options {
  // Joining a group. -1 and "": from the environment (RANK, WORLD_SIZE; WEFT_RENDEZVOUS, else
  // env://).
  int rank = -1;
  int world_size = -1;
  std::string init_method = {};  // env://, tcp://host:port or file:///path
  Timeout init_timeout = std::chrono::seconds(60);

  // Where this worker listens and what it tells others: "host" or "host:port". Default: the
  // environment's WEFT_ADDRESS, else 127.0.0.1 and a free port, which only this host reaches.
  std::string address = {};

  // Deadline of calls that are given none; zero: none.
  Timeout default_timeout = std::chrono::seconds(60);

  // Handlers that run at the same time; blocked ones do not count.
  size_t handler_threads = 16;
  // How long a thread polls before it sleeps. Zero: not at all. Ignored where there is one CPU.
  Timeout spin = std::chrono::microseconds(20);

  // A peer that is silent for `suspect_after` is logged, for `dead_after` is given up.
  Timeout heartbeat_interval = std::chrono::seconds(1);
  Timeout suspect_after = std::chrono::seconds(3);
  Timeout dead_after = std::chrono::seconds(8);

  // An owner drops a holder of references from which no renewal or other message about references
  // has come for this long. A holder sends a renewal every third of it.
  Timeout rref_lease = std::chrono::seconds(10);
  // Log at shutdown which references there still are, by type and by worker.
  bool rref_leak_report = false;

  // Per peer: calls and bytes that may be unanswered before further callers wait.
  size_t window_calls = 1024;
  size_t window_bytes = size_t{64} << 20;

  // A call nested deeper than this is refused with kLimitExceeded.
  size_t max_call_depth = 1000;
  // Threads in handlers, including blocked ones; calls beyond are refused with kLimitExceeded.
  size_t max_handler_threads = 4096;
  // Memory of large received tensors that is kept for the next ones.
  size_t receive_pool_bytes = size_t{256} << 20;
};

}  // namespace weft

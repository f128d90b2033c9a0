// How one call is made.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <optional>

namespace weft {

/// How long a call may take. Zero: no deadline; the call still ends when its connection breaks,
/// when the peer is given up, or when this agent stops.
using Timeout = std::chrono::nanoseconds;

/// Options of one call; an option that is not set is taken from the agent's Options. There are
/// short forms: `rpc_sync<f>({"worker1", 50ms}, x)` is
/// `rpc_sync<f>({"worker1", {.timeout = 50ms}}, x)`.
struct CallOptions {
  std::optional<Timeout> timeout = std::nullopt;
};

}  // namespace weft

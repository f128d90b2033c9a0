// Connections inside one process. Tests use them for groups of agents in one process, for faults,
// and with a clock that only the test advances.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "base/clock.h"
#include "transport/connection.h"
#include "transport/loopback/fault_plan.h"

namespace weft::transport {

class LoopbackConnection;

/// The network that loopback transports share. An address is any text; listen("") makes up a new
/// one.
class LoopbackNetwork : public std::enable_shared_from_this<LoopbackNetwork> {
 public:
  explicit LoopbackNetwork(
      std::shared_ptr<base::Clock> clock = std::make_shared<base::SteadyClock>());
  ~LoopbackNetwork();

  std::unique_ptr<Transport> transport();

  /// Frames sent from now on pass through `plan`. Without a plan they are delivered unchanged.
  void set_faults(FaultPlan plan);
  /// Delivers the delayed frames whose time has come.
  void deliver_due();
  /// Breaks every connection.
  void break_all();

 private:
  friend class LoopbackConnection;
  friend class LoopbackListener;
  friend class LoopbackTransport;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::transport

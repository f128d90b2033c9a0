// Connections inside one process, for tests: whole groups of agents, faults on demand, a clock that
// stands still.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>

#include "base/clock.h"
#include "transport/connection.h"
#include "transport/loopback/fault_plan.h"

namespace weft::transport {

class LoopbackConnection;

/// The medium that loopback transports share. Addresses are any text; "" listens on a fresh one.
class LoopbackNetwork : public std::enable_shared_from_this<LoopbackNetwork> {
 public:
  explicit LoopbackNetwork(
      std::shared_ptr<base::Clock> clock = std::make_shared<base::SteadyClock>());
  ~LoopbackNetwork();

  std::unique_ptr<Transport> transport();

  /// Frames sent from now on pass through `plan`; nothing: delivered as they are.
  void set_faults(FaultPlan plan);
  /// Delivers what was delayed and is due.
  void deliver_due();
  /// Breaks every connection that stands.
  void break_all();

 private:
  friend class LoopbackConnection;
  friend class LoopbackListener;
  friend class LoopbackTransport;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::transport

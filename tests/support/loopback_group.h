// A whole group of agents in this process, over the loopback transport.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/loopback/loopback_transport.h"
#include "weft/agent.h"

namespace weft::test {

class LoopbackGroup {
 public:
  explicit LoopbackGroup(
      const std::vector<std::string>& names, const Options& options = {},
      std::shared_ptr<base::Clock> clock = std::make_shared<base::SteadyClock>());
  ~LoopbackGroup();

  Agent& operator[](size_t rank) { return *agents_[rank]; }
  size_t size() const { return agents_.size(); }
  transport::LoopbackNetwork& network() { return *network_; }
  /// Where an agent listens, as faults of the network see it.
  const std::string& address(size_t rank) const { return addresses_[rank]; }

  /// Graceful shutdown of all at once.
  void shut_down();

 private:
  std::shared_ptr<transport::LoopbackNetwork> network_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

}  // namespace weft::test

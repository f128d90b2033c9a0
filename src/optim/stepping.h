// The lock that all optimizers on one worker share: one at a time changes parameters.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <mutex>

#include "rpc/agent_core.h"
#include "rpc/agent_extension.h"

namespace weft::optim {

class Stepping final : public rpc::AgentExtension {
 public:
  static Stepping& of(rpc::AgentCore& agent);

  /// Held while parameters or what optimizers remember of them change or are read.
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

 private:
  std::mutex mutex_;  // guards no member: who holds it, steps
};

}  // namespace weft::optim

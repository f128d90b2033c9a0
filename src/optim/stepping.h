// The lock that lets only one optimizer of a worker change parameters at a time.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <mutex>

#include "rpc/agent_core.h"
#include "rpc/agent_extension.h"

namespace weft::optim {

class Stepping final : public rpc::AgentExtension {
 public:
  static Stepping& of(rpc::AgentCore& agent);

  /// Held by an optimizer's step, by loading and saving state, and by RemoteModule's to() and
  /// zero_grad(). Functions of the program that read parameters do not take it.
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

 private:
  std::mutex mutex_;  // guards no member: it orders steps
};

}  // namespace weft::optim

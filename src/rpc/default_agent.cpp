// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/default_agent.h"

#include <atomic>

#include "rpc/agent_core.h"
#include "rpc/serving/incoming_call.h"
#include "weft/agent.h"

namespace weft {

namespace {
std::atomic<Agent*> the_default{nullptr};
std::atomic<bool> abandoned{false};
}  // namespace

namespace rpc {
void set_default_agent(Agent* agent) { the_default.store(agent, std::memory_order_release); }
void abandon_default_agent() {
  if (the_default.exchange(nullptr, std::memory_order_acq_rel)) abandoned = true;
}
Agent* default_agent() { return the_default.load(std::memory_order_acquire); }
}  // namespace rpc

Agent& current_agent() {
  if (rpc::IncomingCall* call = rpc::IncomingCall::current()) {
    if (Agent* agent = call->server().agent().facade()) return *agent;
  }
  if (Agent* agent = rpc::default_agent()) return *agent;
  if (abandoned) throw Error(ErrorCode::kNotInitialized, rpc::kForkedChildHasNoAgent);
  throw Error(ErrorCode::kNotInitialized,
              "RPC has not been initialized, or was shut down; call weft::init_rpc first");
}

}  // namespace weft

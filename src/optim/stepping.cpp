// SPDX-License-Identifier: BSD-3-Clause
#include "optim/stepping.h"

#include <memory>

namespace weft::optim {

namespace {
std::shared_ptr<rpc::AgentExtension> make_stepping(rpc::AgentCore&) {
  return std::make_shared<Stepping>();
}
const size_t extension_index = rpc::register_agent_extension(&make_stepping);
}  // namespace

Stepping& Stepping::of(rpc::AgentCore& agent) {
  return static_cast<Stepping&>(agent.extension(extension_index));
}

}  // namespace weft::optim

// SPDX-License-Identifier: BSD-3-Clause
#include "optim/stepping.h"

#include <memory>

namespace weft::optim {

namespace {
std::shared_ptr<rpc::AgentPart> make_stepping(rpc::AgentCore&) {
  return std::make_shared<Stepping>();
}
const size_t part_index = rpc::register_agent_part(&make_stepping);
}  // namespace

Stepping& Stepping::of(rpc::AgentCore& agent) {
  return static_cast<Stepping&>(agent.part(part_index));
}

}  // namespace weft::optim

// The agent that free functions use outside of handlers. Set by the process layer alone.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

namespace weft {
class Agent;
}

namespace weft::rpc {

void set_default_agent(Agent* agent);
Agent* default_agent();

}  // namespace weft::rpc

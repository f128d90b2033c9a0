// The agent that free functions use outside of handlers. Set by the process layer alone.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

namespace weft {
class Agent;
}

namespace weft::rpc {

inline constexpr const char* kForkedChildHasNoAgent =
    "this process was forked from a worker, and a forked process has no agent; call "
    "weft::init_rpc in it to make it a worker of its own";

/// In a forked child: there was a default agent in the parent, and there is none here.
void abandon_default_agent();
void set_default_agent(Agent* agent);
Agent* default_agent();

}  // namespace weft::rpc

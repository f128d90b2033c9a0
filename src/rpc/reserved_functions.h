// The agent's own calls: ordinary functions under names that start with "sys.".
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rpc/agent_core.h"
#include "rpc/group/termination.h"
#include "weft/future.h"

namespace weft::rpc {

/// Registers them; done by every agent that starts.
void register_reserved_functions();

// The connection tells who calls, so no worker speaks for another.
/// Does nothing: its answer shows that the worker lives.
void sys_probe();

// The end of the group: to the worker that coordinates, and from it.
Future<Termination::Verdict> sys_report(bool idle, uint64_t activity);
std::vector<std::string> sys_awaited();
void sys_alive();

// Meetings: to the member that leads.
Future<Meetings::Outcome> sys_gather(std::vector<std::string> set, uint64_t round,
                                     Contribution contribution);
std::vector<std::string> sys_withdraw(std::vector<std::string> set, uint64_t round);

}  // namespace weft::rpc

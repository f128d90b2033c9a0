// Calls of a pass for which perhaps no thread waits. If one fails, the context fails.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "autograd/pass_message.h"
#include "rpc/agent_core.h"
#include "weft/detail/ref_counted.h"
#include "weft/error.h"
#include "weft/future.h"

namespace weft::autograd {

class ContextState;

/// The failure that a worker reported, or that of the call to it.
std::string failure_of(const Error& error);

/// Returns at once. If the gradients do not arrive, the context fails.
void send_gradients(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                    const ReturnedGradients& returned);

/// Orders a worker to run. If the worker fails or the connection breaks, the context fails, also if
/// no thread waits for the answer.
Future<RunReport> send_run_order(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                                 const RunOrder& order);

}  // namespace weft::autograd

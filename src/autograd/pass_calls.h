// The calls of a pass that nobody may be waiting for: what fails in them is the context's failure.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "autograd/pass_message.h"
#include "rpc/agent_core.h"
#include "weft/detail/ref_counted.h"
#include "weft/error.h"
#include "weft/future.h"

namespace weft::autograd {

class ContextState;

/// What a worker says went wrong, or what went wrong on the way.
std::string failure_of(const Error& error);

/// Returns at once. If they do not arrive, the context fails.
void send_gradients(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                    const ReturnedGradients& returned);

/// Orders a worker to run. If it fails, or dies, so does the context, whoever waits for the answer.
Future<RunReport> send_run_order(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                                 const RunOrder& order);

}  // namespace weft::autograd

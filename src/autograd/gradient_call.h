// Gradients on their way to the worker that sent the tensors.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "autograd/pass_message.h"
#include "rpc/agent_core.h"
#include "weft/detail/ref_counted.h"

namespace weft::autograd {

class ContextState;

/// Returns at once. If they do not arrive, the context fails.
void send_gradients(rpc::AgentCore& agent, detail::Ref<ContextState> context, int to,
                    const ReturnedGradients& returned);

}  // namespace weft::autograd

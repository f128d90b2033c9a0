// Calls that an agent makes for itself, to reserved functions of others.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "rpc/agent_core.h"
#include "weft/detail/outgoing_call.h"

namespace weft::rpc {

template <auto F, typename... Args>
auto own_call(AgentCore& agent, int rank, Timeout timeout, const Args&... args) {
  using Function = detail::RemoteFunction<F>;
  Encoder arguments;
  Function::encode(arguments, args...);
  auto pending = detail::make_ref<detail::TypedCall<typename Function::Result>>();
  agent.start_call(*pending, Function::entry(), Destination(rank, timeout), true, arguments);
  return detail::FutureAccess::make<typename Function::Result>(std::move(pending));
}

/// For a wait that may take long: this thread does not receive the reply itself, so that calls of
/// other threads to the same peer stay quick. The next thread that receives from the peer settles
/// the call, or the I/O loop does, a few milliseconds late.
template <typename T>
void wait_patiently(const Future<T>& future) {
  detail::FutureAccess::state(future).FutureCore::wait_until(std::nullopt);
}

}  // namespace weft::rpc

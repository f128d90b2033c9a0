// SPDX-License-Identifier: BSD-3-Clause
#include "weft/current_call.h"

#include "rpc/serving/incoming_call.h"
#include "rpc/serving/server.h"
#include "weft/error.h"

namespace weft::current_call {

using rpc::IncomingCall;

bool exists() { return IncomingCall::current() != nullptr; }

bool cancelled() {
  const IncomingCall* call = IncomingCall::current();
  if (!call) return false;
  return call->cancelled() || call->server().runtime().clock->now() >= call->deadline();
}

std::optional<std::chrono::nanoseconds> remaining() {
  const IncomingCall* call = IncomingCall::current();
  if (!call || call->deadline() == base::Time::max()) return std::nullopt;
  return call->deadline() - call->server().runtime().clock->now();
}

WorkerInfo caller() {
  const IncomingCall* call = IncomingCall::current();
  if (!call) {
    throw Error(ErrorCode::kInvalidArgument, "current_call::caller() outside of a call");
  }
  return call->caller();
}

}  // namespace weft::current_call

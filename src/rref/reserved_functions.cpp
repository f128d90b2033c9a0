// SPDX-License-Identifier: BSD-3-Clause
#include "rref/reserved_functions.h"

#include <mutex>

#include "rpc/serving/incoming_call.h"
#include "rpc/serving/server.h"
#include "rref/keeper.h"

namespace weft::rref {

SessionReply sys_rref_session(SessionMessage message) {
  rpc::IncomingCall& call = *rpc::IncomingCall::current();
  return Keeper::of(call.server().agent()).objects().on_message(call.caller(), message);
}

void register_reserved_functions() {
  static std::once_flag once;
  std::call_once(once,
                 [] { detail::RemoteFunction<sys_rref_session>::reserve("sys.rref.session"); });
}

}  // namespace weft::rref

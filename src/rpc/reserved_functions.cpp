// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/reserved_functions.h"

#include <mutex>
#include <utility>

#include "rpc/serving/incoming_call.h"

namespace weft::rpc {

namespace {
AgentCore& serving_agent() { return IncomingCall::current()->server().agent(); }
WorkerInfo calling_worker() { return IncomingCall::current()->caller(); }
}  // namespace

void sys_probe() {}

Future<Termination::Verdict> sys_report(bool idle, uint64_t activity) {
  return serving_agent().group_shutdown().on_report(calling_worker().id, idle, activity);
}

std::vector<std::string> sys_awaited() { return serving_agent().group_shutdown().awaited(); }

void sys_alive() { serving_agent().group_shutdown().on_coordinator(calling_worker().id); }

Future<Meetings::Outcome> sys_gather(std::vector<std::string> set, uint64_t round,
                                     Contribution contribution) {
  return serving_agent().meetings().on_arrival(std::move(set), round, calling_worker().name,
                                               std::move(contribution));
}

std::vector<std::string> sys_withdraw(std::vector<std::string> set, uint64_t round) {
  return serving_agent().meetings().on_withdrawal(set, round, calling_worker().name);
}

void register_reserved_functions() {
  static std::once_flag once;
  std::call_once(once, [] {
    detail::RemoteFunction<sys_probe>::reserve("sys.probe");
    detail::RemoteFunction<sys_report>::reserve("sys.report");
    detail::RemoteFunction<sys_awaited>::reserve("sys.awaited");
    detail::RemoteFunction<sys_alive>::reserve("sys.alive");
    detail::RemoteFunction<sys_gather>::reserve("sys.gather");
    detail::RemoteFunction<sys_withdraw>::reserve("sys.withdraw");
  });
}

}  // namespace weft::rpc

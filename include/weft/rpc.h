// Remote calls: the functions most programs need.
//
//   weft::init_rpc("worker0");
//   at::Tensor sum = weft::rpc_sync<add>("worker1", a, b);
//   weft::shutdown();
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "weft/agent.h"
#include "weft/current_call.h"
#include "weft/debug_info.h"
#include "weft/error.h"
#include "weft/export.h"
#include "weft/future.h"
#include "weft/launch.h"
#include "weft/log.h"
#include "weft/options.h"
#include "weft/same_host.h"
#include "weft/worker_info.h"

namespace weft {

/// Makes this process a worker: starts its default agent and joins the group. Throws
/// kInvalidArgument if it is one already, or for a bad or taken name.
WEFT_API void init_rpc(const std::string& name, const Options& options = {});

enum class Shutdown { kGraceful, kNow };
/// Ends the default agent; see Agent::shutdown(). Harmless without one.
WEFT_API ShutdownReport shutdown(Shutdown how = Shutdown::kGraceful);

/// This worker, or another member by name or rank.
WEFT_API WorkerInfo get_worker_info();
WEFT_API WorkerInfo get_worker_info(const Destination& worker);

/// Waits until every one of `workers` (nobody named: every member) has come here with the same set,
/// of which this worker must be one. Throws kTimeout naming those who did not come. Any
/// number of sets, and of threads of one set, may meet at the same time.
WEFT_API void barrier(const std::vector<std::string>& workers = {},
                      Timeout timeout = std::chrono::seconds(60));

/// Like barrier; returns what each one brought, by name.
template <typename T>
std::map<std::string, T> all_gather(const T& value, const std::vector<std::string>& workers = {},
                                    Timeout timeout = std::chrono::seconds(60)) {
  return current_agent().all_gather(value, workers, timeout);
}

/// Counters and latencies of the current agent; print it with <<.
WEFT_API DebugInfo debug_info();

/// Calls F on `to` and waits for the result. F is a function or a lambda without captures.
template <auto F, typename... Args>
typename detail::RemoteFunction<F>::Result rpc_sync(const Destination& to, Args&&... args) {
  return current_agent().template sync<F>(to, std::forward<Args>(args)...);
}

/// Calls F on `to`. Until the future completes the tensors among the arguments belong to the call:
/// they are sent from where they lie.
template <auto F, typename... Args>
Future<typename detail::RemoteFunction<F>::Result> rpc_async(const Destination& to,
                                                             Args&&... args) {
  return current_agent().template async<F>(to, std::forward<Args>(args)...);
}

/// Makes F callable in a program that serves it but never calls it itself. With a name, F is known
/// by it in place of its own, on every worker that says so before init_rpc.
template <auto F>
requires(!std::is_member_function_pointer_v<decltype(F)>) void expose() {
  (void)detail::RemoteFunction<F>::entry();
}
template <auto F>
void expose(std::string name) {
  detail::RemoteFunction<F>::rename(std::move(name));
}

}  // namespace weft

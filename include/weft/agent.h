// One worker of a group: serves calls of the others and makes calls to them.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/debug_info.h"
#include "weft/destination.h"
#include "weft/detail/function_entry.h"
#include "weft/detail/outgoing_call.h"
#include "weft/export.h"
#include "weft/future.h"
#include "weft/options.h"
#include "weft/worker_info.h"

namespace weft {

namespace rpc {
class AgentCore;
}

namespace detail {
struct AgentAccess;
}

/// What a graceful shutdown found.
struct ShutdownReport {
  std::vector<std::string> lost_workers;  // members that were dead or could not be reached
};

/// Everything one worker has: connections, threads, tables. Several agents may live in one process
/// and share none of these; ARCHITECTURE.md lists the few things that are process-wide.
/// Thread-safe.
class WEFT_API Agent {
 public:
  /// Joins the group that `options` describe; returns when every member is there. Throws
  /// kInvalidArgument for a bad name or bad options, kUnavailable when the group does not form in
  /// time.
  /// The first call is served after `before_serving`.
  static std::unique_ptr<Agent> join(const std::string& name, const Options& options = {},
                                     const std::function<void(Agent&)>& before_serving = {});

  explicit Agent(std::shared_ptr<rpc::AgentCore> core);
  /// Like shutdown_now().
  ~Agent();

  /// Calls F on `to` and waits for the result; throws weft::Error.
  template <auto F, typename... Args>
  typename detail::RemoteFunction<F>::Result sync(const Destination& to, Args&&... args) {
    return start<F>(to, Urgency::kCallerWaits, args...).wait();
  }

  /// Calls F on `to`. Mistakes of the caller are thrown here, everything else is the future's.
  template <auto F, typename... Args>
  Future<typename detail::RemoteFunction<F>::Result> async(const Destination& to, Args&&... args) {
    return start<F>(to, Urgency::kMayWait, args...);
  }

  const WorkerInfo& info() const;
  /// Throws kInvalidArgument if there is no such member.
  WorkerInfo info(const Destination& worker) const;
  const std::vector<WorkerInfo>& members() const;
  DebugInfo debug_info() const;

  /// See weft::barrier and weft::all_gather.
  void barrier(const std::vector<std::string>& workers = {},
               Timeout timeout = std::chrono::seconds(60));
  template <typename T>
  std::map<std::string, T> all_gather(const T& value, const std::vector<std::string>& workers = {},
                                      Timeout timeout = std::chrono::seconds(60)) {
    Encoder mine;
    Codec<T>::encode(mine, value);
    std::map<std::string, T> all;
    for (auto& [name, part] : gather(mine, workers, timeout)) {
      Decoder in(std::as_bytes(std::span(part.bytes)), part.tensors);
      all.emplace(name, Codec<T>::decode(in));
      in.finish();
    }
    return all;
  }

  /// For calls made from now on that are given no timeout of their own.
  void set_default_timeout(Timeout timeout);

  /// Serves until every member that lives has called shutdown() too and no call is left anywhere,
  /// then stops. Afterwards calls fail with kShuttingDown. Harmless when called again.
  ShutdownReport shutdown();
  /// Stops at once: calls in flight fail with kShuttingDown, peers see the connection close.
  void shutdown_now();

 private:
  friend struct detail::AgentAccess;
  enum class Urgency { kMayWait, kCallerWaits };

  template <auto F, typename... Args>
  Future<typename detail::RemoteFunction<F>::Result> start(const Destination& to, Urgency urgency,
                                                           Args&... args) {
    using Function = detail::RemoteFunction<F>;
    using Result = typename Function::Result;
    Encoder arguments;
    Function::encode(arguments, args...);
    auto call = detail::make_ref<detail::TypedCall<Result>>();
    start_call(*call, Function::entry(), to, urgency, arguments);
    return detail::FutureAccess::make<Result>(std::move(call));
  }
  /// An encoded value, so that the code that meets others is not a template.
  struct Part {
    std::vector<uint8_t> bytes;
    std::vector<at::Tensor> tensors;
  };
  std::map<std::string, Part> gather(const Encoder& mine, const std::vector<std::string>& workers,
                                     Timeout timeout);
  void start_call(detail::OutgoingCall& call, const detail::FunctionEntry& function,
                  const Destination& to, Urgency urgency, Encoder& arguments);

  std::shared_ptr<rpc::AgentCore> core_;
};

namespace detail {
struct AgentAccess {
  static const std::shared_ptr<rpc::AgentCore>& core(Agent& agent) { return agent.core_; }
};
}  // namespace detail

/// The agent that free functions act on: the one whose handler runs on this thread, else the
/// process's default agent. Throws kNotInitialized if there is none.
WEFT_API Agent& current_agent();

}  // namespace weft

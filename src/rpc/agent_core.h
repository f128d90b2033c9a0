// Everything behind an Agent: owns the parts of one worker and starts and stops them in order.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "rpc/agent_extension.h"
#include "rpc/calling/peer.h"
#include "rpc/companion.h"
#include "rpc/group/group_shutdown.h"
#include "rpc/group/meetings.h"
#include "rpc/idle_trim.h"
#include "rpc/runtime.h"
#include "rpc/serving/acceptor.h"
#include "rpc/serving/server.h"
#include "weft/agent.h"

namespace weft::rpc {

class AgentCore : public std::enable_shared_from_this<AgentCore> {
 public:
  static std::shared_ptr<AgentCore> start(Group group, Options options,
                                          std::shared_ptr<base::Clock> clock,
                                          std::unique_ptr<transport::Transport> transport,
                                          std::unique_ptr<transport::Listener> listener);
  ~AgentCore();

  /// Takes calls from now on. Before, there must be an Agent for the functions they run.
  void open();

  Runtime& runtime() { return *runtime_; }
  const std::vector<WorkerInfo>& members() const { return members_; }
  /// Throws kInvalidArgument, naming what was asked for and who there is.
  Peer& peer(const Destination& to) const;

  void start_call(detail::OutgoingCall& call, const detail::FunctionEntry& function,
                  const Destination& to, bool caller_waits, Encoder& arguments);

  ShutdownReport shutdown();
  void shutdown_now(base::Duration patience);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  DebugInfo debug_info();

  /// The extension for which register_agent_extension() returned `index`.
  AgentExtension& extension(size_t index) const { return *extensions_.at(index); }
  detail::Ref<Companion> on_note(const WorkerInfo& from, std::span<const std::byte> note,
                                 std::span<at::Tensor> tensors);
  void keep_for_receiver(const WorkerInfo& receiver,
                         const std::vector<detail::Ref<detail::RefCounted>>& objects);

  // The facade, as functions running here see it.
  void set_facade(Agent* agent) { facade_.store(agent, std::memory_order_release); }
  Agent* facade() const { return facade_.load(std::memory_order_acquire); }

  Meetings& meetings() { return meetings_; }
  GroupShutdown& group_shutdown() { return group_shutdown_; }

  enum class CallsOf { kUsers, kEverybody };
  std::vector<CallInFlight> calls_in_flight(CallsOf whom);

  /// Whether this worker has nothing to do that a graceful shutdown waits for.
  Idleness idleness();
  /// The work that is left, for people.
  std::vector<std::string> unfinished();

 private:
  AgentCore(Group group, Options options, std::shared_ptr<base::Clock> clock,
            std::unique_ptr<transport::Transport> transport);
  void begin(std::unique_ptr<transport::Listener> listener);
  void on_tick();
  void on_member_gone(int rank, const Error& why);
  void stop(bool let_replies_out, base::Duration patience);
  [[noreturn]] void refuse(const Destination& to) const;

  std::shared_ptr<Runtime> runtime_;
  std::vector<WorkerInfo> members_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank
  std::unordered_map<std::string_view, Peer*> by_name_;
  std::vector<std::shared_ptr<AgentExtension>> extensions_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<Acceptor> acceptor_;
  std::shared_ptr<IdleTrim> idle_trim_;
  std::shared_ptr<base::Crew> io_crew_;
  std::shared_ptr<base::Crew> server_crew_;
  std::atomic<Agent*> facade_{nullptr};

  base::Mutex stop_mutex_;
  std::atomic<bool> stopped_{false};
  ShutdownReport report_ WEFT_GUARDED_BY(stop_mutex_);

  Meetings meetings_;
  GroupShutdown group_shutdown_;
};

}  // namespace weft::rpc

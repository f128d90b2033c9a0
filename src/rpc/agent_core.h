// Everything behind an Agent: owns the parts of one worker and starts and stops them in order.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rpc/acceptor.h"
#include "rpc/agent_part.h"
#include "rpc/companion.h"
#include "rpc/gathering.h"
#include "rpc/peer.h"
#include "rpc/runtime.h"
#include "rpc/server.h"
#include "rpc/termination.h"
#include "weft/agent.h"

namespace weft::rpc {

/// An encoded value among those that all_gather collects.
struct GatheredPart {
  std::vector<uint8_t> bytes;
  std::vector<at::Tensor> tensors;
};

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
                  const Destination& to, bool caller_waits, const Encoder& arguments);

  ShutdownReport shutdown();
  void shutdown_now(base::Duration patience);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  DebugInfo debug_info();

  /// What register_agent_part() returned `index` for.
  AgentPart& part(size_t index) const { return *parts_.at(index); }
  detail::Ref<Companion> on_note(const WorkerInfo& from, std::span<const std::byte> note,
                                 std::span<at::Tensor> tensors);
  void keep_for_receiver(const WorkerInfo& receiver,
                         const std::vector<detail::Ref<detail::RefCounted>>& objects);

  // The facade, as functions running here see it.
  void set_facade(Agent* agent) { facade_.store(agent, std::memory_order_release); }
  Agent* facade() const { return facade_.load(std::memory_order_acquire); }

  // Reserved functions, on the worker that coordinates.
  Future<Termination::Verdict> on_report(int rank, bool idle, uint64_t activity);
  using Parts = std::map<std::string, GatheredPart>;
  Future<Parts> on_gather(std::vector<std::string> set, uint64_t round, std::string who,
                          GatheredPart part);
  void on_probe(int coordinator);
  std::vector<std::string> on_withdraw(const std::vector<std::string>& set, uint64_t round,
                                       const std::string& who);

  Parts gather(GatheredPart mine, std::vector<std::string> set, Timeout timeout);

 private:
  AgentCore(Group group, Options options, std::shared_ptr<base::Clock> clock,
            std::unique_ptr<transport::Transport> transport);
  void begin(std::unique_ptr<transport::Listener> listener);
  void on_tick();
  Idleness idleness();
  Termination::Verdict wait_for_group();
  int coordinator() const;
  void probe_missing();
  void abandon_meetings();
  void stop(bool let_replies_out, base::Duration patience);
  [[noreturn]] void refuse(const Destination& to) const;
  void check_meeting(const std::vector<std::string>& set, const std::string& who) const;

  std::shared_ptr<Runtime> runtime_;
  std::vector<WorkerInfo> members_;
  std::vector<detail::Ref<Peer>> peers_;  // by rank
  std::unordered_map<std::string_view, Peer*> by_name_;
  std::vector<std::shared_ptr<AgentPart>> parts_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<Acceptor> acceptor_;
  std::shared_ptr<base::Crew> io_crew_;
  std::shared_ptr<base::Crew> server_crew_;
  std::atomic<Agent*> facade_{nullptr};

  std::mutex stop_mutex_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> stopped_{false};
  ShutdownReport report_;

  mutable std::mutex meeting_mutex_;
  Termination termination_;
  std::atomic<bool> probing_{false};
  Gathering<GatheredPart> gathering_;
  std::map<std::vector<std::string>, uint64_t> rounds_;
};

}  // namespace weft::rpc

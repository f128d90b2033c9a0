// Serves the calls of other workers.
//
// One thread of a crew leads: it waits for the serving links, decodes and runs functions inline.
// Functions that are known to take long, that block or that turn out slow give the lead away (see
// base/crew.h), so reading goes on and pings are answered. Functions beyond `handler_threads` at
// once wait in a backlog.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/crew.h"
#include "base/spinner.h"
#include "observe/histogram.h"
#include "rpc/runtime.h"
#include "rpc/serving/incoming_call.h"
#include "rpc/serving/serving_link.h"
#include "transport/poller.h"
#include "weft/debug_info.h"

namespace weft::rpc {

class AgentCore;

/// For people.
LatencySummary summarize(const observe::Histogram& histogram);

class Server final : public base::CrewLoop {
 public:
  /// `agent` is the one that functions running here belong to.
  Server(std::shared_ptr<Runtime> runtime, AgentCore& agent);
  ~Server() override;
  void set_crew(base::Crew& crew) { crew_ = &crew; }

  Runtime& runtime() const { return *runtime_; }
  AgentCore& agent() const { return agent_; }

  enum class Adoption {
    kServed,
    kClosed,            // the server has shut down
    kOutOfDescriptors,  // the poller cannot watch the connection
  };
  /// Takes over a connection whose hello was accepted. Any thread.
  Adoption adopt(detail::Ref<Link> link, const WorkerInfo& caller);

  /// Sends what is queued and says that no more follows; waits at most `patience`.
  void finish_sending(base::Duration patience);
  void close_all();

  std::vector<FunctionStats> function_stats() const;
  size_t backlog() const;
  size_t links() const;
  void describe_calls(std::vector<CallInFlight>& calls, bool reserved_too) const;

  // For calls and links.
  void on_user_code(IncomingCall& call);
  void on_answered(IncomingCall& call, bool failed, base::Duration took);
  bool flushes_later(ServingLink& link) const;
  void watch(int descriptor, uint32_t interest, uint64_t token);

  // CrewLoop:
  void lead() override;
  void interrupt() override { poller_.wake(); }
  bool run_from_backlog() override;
  bool backlog_starves() override;

 private:
  struct FunctionCounters {
    std::atomic<uint64_t> served{0}, failed{0};
    std::atomic<int64_t> typical_ns{0};  // moving average
    observe::Histogram handler;
  };
  FunctionCounters& counters_of(const detail::FunctionEntry& function);

  // Leader only; false: the lead was lost.
  bool serve_ready();
  bool serve_events(std::optional<base::Duration> limit);
  bool receive_and_serve(ServingLink& link);
  bool serve_frames(ServingLink& link);
  bool serve_call(ServingLink& link);
  bool welcome(IncomingCall& call, std::span<const std::byte> note, std::span<at::Tensor> tensors);
  bool run_here(IncomingCall& call, wire::Frame& frame, std::span<const std::byte> arguments);
  bool spin_on(ServingLink& link);
  void drop(ServingLink& link, const std::string& why, bool suspicious);
  detail::Ref<ServingLink> find(uint64_t token);

  std::shared_ptr<Runtime> runtime_;
  AgentCore& agent_;
  base::Crew* crew_ = nullptr;
  transport::Poller poller_;

  // The leader's; tells the next leader where this one was.
  detail::Ref<ServingLink> current_;
  detail::Ref<ServingLink> hot_;  // served last; polled while spinning
  base::Spinner spinner_;

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, detail::Ref<ServingLink>> links_;
  uint64_t next_token_ = 1;
  bool closed_ = false;
  std::deque<detail::Ref<IncomingCall>> backlog_;
  base::Time backlog_moved_{};
  std::atomic<size_t> backlog_size_{0};

  std::unique_ptr<FunctionCounters[]> function_counters_;
  uint32_t function_count_;
};

}  // namespace weft::rpc

// Serves the calls of other workers, with as many threads as there is work for.
//
// Connections are spread over desks (rpc/serving/desk.h), each led by a thread of one crew
// (base/crew.h): a lightly loaded worker answers on the thread that read, a loaded one reads and
// runs with as many threads as it has CPUs. Calls that a desk leaves to others, and calls that had
// to wait for their arguments, wait in a backlog for any thread of the crew.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/crew.h"
#include "base/mutex.h"
#include "rpc/runtime.h"
#include "rpc/serving/backlog.h"
#include "rpc/serving/desk.h"
#include "rpc/serving/function_statistics.h"
#include "rpc/serving/incoming_call.h"
#include "rpc/serving/serving_link.h"
#include "weft/debug_info.h"

namespace weft::rpc {

class AgentCore;

class Server final : public base::CrewBacklog {
 public:
  /// `agent` is the one that functions running here belong to.
  Server(std::shared_ptr<Runtime> runtime, AgentCore& agent);
  ~Server() override;

  /// How many desks a worker has: as many as threads that may use a CPU.
  static size_t desks_of(const Runtime& runtime);
  /// Gives the crew its loops, before it starts.
  void set_crew(base::Crew& crew);
  /// Throws kLimitExceeded if no thread can be started.
  void start();

  Runtime& runtime() const { return *runtime_; }
  AgentCore& agent() const { return agent_; }
  FunctionStatistics& statistics() { return statistics_; }

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

  size_t links() const;
  void describe_calls(std::vector<CallInFlight>& calls, bool reserved_too) const;

  // For calls.
  void on_answered(IncomingCall& call, bool failed, base::Duration took);
  /// The call is run by a thread of the crew as soon as there is a slot. Any thread.
  void add_to_backlog(detail::Ref<IncomingCall> call);

  // CrewBacklog:
  size_t waiting() const override { return backlog_size_.load(std::memory_order_seq_cst); }
  bool run_one() override;
  bool run_short() override;

 private:
  template <typename F>
  bool run_one_that(const F& suits);
  Desk& desk_for_next() const;
  std::vector<detail::Ref<ServingLink>> all_links() const;

  const std::shared_ptr<Runtime> runtime_;
  AgentCore& agent_;
  base::Crew* crew_ = nullptr;
  std::vector<std::unique_ptr<Desk>> desks_;  // constant after set_crew()
  FunctionStatistics statistics_;

  mutable base::Mutex mutex_;
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
  Backlog<int, detail::Ref<IncomingCall>> backlog_ WEFT_GUARDED_BY(mutex_);  // by caller's rank
  std::atomic<size_t> backlog_size_{0};
  std::map<int, UntakenReplies> untaken_replies_ WEFT_GUARDED_BY(mutex_);  // by caller's rank
  std::atomic<uint32_t> fruitless_rescues_{0};
};

}  // namespace weft::rpc

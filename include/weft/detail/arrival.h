// A message that is being decoded: where it came from, and what must happen before it may be used.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "weft/future.h"
#include "weft/worker_info.h"

namespace weft::rpc {
class AgentCore;
}

namespace weft::detail {

/// A message that is being decoded, for codecs that need more than its bytes. The function starts,
/// or the future completes, when everything that codecs asked to wait for is there; no thread waits
/// meanwhile.
class Arrival {
 public:
  enum class Kind { kCall, kReply };
  Arrival(const std::weak_ptr<rpc::AgentCore>& agent, const WorkerInfo& from, Kind kind)
      : weak_agent_(agent), from_(from), kind_(kind) {}
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  /// Throws kShuttingDown if the agent is gone: a thread that waits for a reply may outlive it.
  rpc::AgentCore& agent() {
    if (!agent_) agent_ = weak_agent_.lock();
    if (!agent_) throw Error(ErrorCode::kShuttingDown, "the agent was destroyed meanwhile");
    return *agent_;
  }
  const WorkerInfo& from() const { return from_; }
  Kind kind() const { return kind_; }

  void wait_for(Future<void> what) { needed_.push_back(std::move(what)); }
  bool must_wait() const { return !needed_.empty(); }
  std::vector<Future<void>> take_needed() { return std::exchange(needed_, {}); }

 private:
  const std::weak_ptr<rpc::AgentCore>& weak_agent_;
  std::shared_ptr<rpc::AgentCore> agent_;  // from the first use on; most messages have none
  const WorkerInfo& from_;
  const Kind kind_;
  std::vector<Future<void>> needed_;
};

/// Calls `then` with nothing when all are done, or with the first error in order of the vector.
/// Runs here if they are done already, else on a thread that may not block.
template <typename F>
void when_all(std::vector<Future<void>> futures, F then) {
  struct Countdown {
    Countdown(std::vector<Future<void>> all, F f) : futures(std::move(all)), then(std::move(f)) {}
    void count() {
      if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      for (const Future<void>& each : futures) {
        if (auto& state = FutureAccess::state(each); state.failed()) return then(state.exception());
      }
      then(std::exception_ptr());
    }
    std::vector<Future<void>> futures;
    F then;
    std::atomic<size_t> left{futures.size() + 1};
  };
  auto countdown = std::make_shared<Countdown>(std::move(futures), std::move(then));
  for (const Future<void>& each : countdown->futures) {
    each.on_ready([countdown](const Future<void>&) { countdown->count(); });
  }
  countdown->count();
}

}  // namespace weft::detail

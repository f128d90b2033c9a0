// The end of a group: every member that lives waits until no member has work left. The shell around
// Termination.
//
// Each member reports to the coordinator, the lowest rank that lives, whenever it has nothing to
// do. The coordinator answers when all have reported.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "rpc/group/termination.h"
#include "rpc/group/wait_hint.h"
#include "rpc/io/alarm.h"
#include "weft/future.h"

namespace weft::rpc {

class AgentCore;

class GroupShutdown {
 public:
  explicit GroupShutdown(AgentCore& agent);

  /// Returns when the group has finished, or stop() was called.
  Termination::Verdict wait();
  /// Ends a wait() of another thread.
  void stop();
  /// Gives up the reports of others that wait here.
  void clear();

  // On the member that coordinates.
  Future<Termination::Verdict> on_report(int rank, bool idle, uint64_t activity);
  /// Names of the members that the current wave waits for.
  std::vector<std::string> awaited() const;

  /// `coordinator` coordinates, so it lives, whatever this worker believed.
  void on_coordinator(int coordinator);

 private:
  template <typename F>
  void with_termination(const F& change);
  int coordinator() const;
  bool report(uint64_t activity, Termination::Verdict& verdict);
  void ask_missing();
  void on_asked(int rank, const Future<void>& answer);
  void on_gone(int rank, const Error& why);
  void hint_if_due();
  std::string what_it_waits_for();
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

  AgentCore& agent_;
  std::atomic<bool> stopping_{false};
  WaitHint hint_;  // of the thread in wait()

  mutable base::Mutex mutex_;
  Termination termination_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> answers_
      WEFT_GUARDED_BY(mutex_);  // to be given once the lock is released
  std::shared_ptr<Alarm> alarm_
      WEFT_GUARDED_BY(mutex_);  // asks missing members, on the coordinator
};

}  // namespace weft::rpc

// Threads that take turns leading one loop.
//
// One thread leads: it polls and runs user code itself, so that a quick function needs no change of
// threads. If user code blocks, its thread gives the lead away before it sleeps; if user code is
// slow, the pulse takes the lead from its thread. In both cases another thread leads on at once, so
// no event waits for user code, and nested calls cannot use up the threads. The thread that lost
// the lead finishes its user code, helps with the loop's backlog and then stands by.
//
// One atomic word hands the lead over: it has a phase and the sequence number of the run of user
// code. The loop's own state belongs to the leader and is never touched inside user code, so
// another thread can take it over then.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/pulse.h"
#include "weft/detail/ambient.h"

namespace weft::base {

class CrewLoop {
 public:
  virtual ~CrewLoop() = default;
  /// Leads until leave_user_code() returns false or the crew stops.
  virtual void lead() = 0;
  /// Makes a polling leader look at Crew::stopping(). Any thread.
  virtual void interrupt() = 0;
  /// Runs one task of the backlog on a thread that does not lead. False if there is none.
  virtual bool run_from_backlog() { return false; }
  /// Whether the backlog has waited so long that an extra thread is needed.
  virtual bool backlog_starves() { return false; }
};

class Crew : public std::enable_shared_from_this<Crew> {
 public:
  struct Limits {
    size_t running = 16;     // a task of the backlog starts only if fewer threads are running
    size_t threads = 4096;   // in all, including blocked ones
    size_t standing_by = 4;  // idle threads beyond this end
  };

  /// Every thread of the crew holds `keepalive` while it runs, so that the object still exists for
  /// user code that stop() did not wait for.
  Crew(std::string name, Limits limits, CrewLoop& loop, Pulse& pulse,
       std::weak_ptr<void> keepalive);

  /// Throws kLimitExceeded if no thread can be started.
  void start();
  /// Ends the threads. Threads that are still in user code after `patience` are left to end by
  /// themselves; then it returns false.
  bool stop(Duration patience);
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  // The leader calls these around each run of user code.
  void enter_user_code();
  /// False if another thread leads now: return from lead() without touching the loop's state.
  bool leave_user_code();
  /// Inside user code that was entered as leader: whether this thread still leads.
  bool still_leads() const;
  /// Gives the lead away at once, for user code that is known to take long.
  void give_up_lead();

  /// Threads that run user code without leading and are not blocked.
  size_t running() const { return running_.load(std::memory_order_relaxed); }
  size_t limit() const { return limits_.running; }
  size_t threads() const { return alive_.load(std::memory_order_relaxed); }
  bool out_of_threads() const { return threads() >= limits_.threads; }
  size_t idle() const;

  /// Called by the pulse.
  void on_tick();

 private:
  class Member;
  enum class Duty { kNone, kLead, kHelp };
  enum Phase : uint64_t { kPolling = 0, kUserCode = 1, kVacant = 2 };
  static constexpr uint64_t word(uint64_t sequence, Phase phase) { return sequence << 2 | phase; }

  bool take_lead_from(uint64_t seen);
  void assign(Duty duty);
  bool spawn(Duty duty);
  void thread_main(Duty duty);
  void take_turn(Member& me, Duty duty);
  Duty stand_by(Member& me);
  void help();

  const std::string name_;
  const Limits limits_;
  CrewLoop& loop_;
  Pulse& pulse_;
  std::weak_ptr<void> keepalive_;

  std::atomic<uint64_t> word_{word(0, kVacant)};
  std::atomic<size_t> running_{0};
  std::atomic<size_t> alive_{0};
  std::atomic<bool> stopping_{false};
  uint64_t word_at_last_tick_ = 0;  // pulse thread only

  mutable std::mutex mutex_;
  std::condition_variable all_gone_;
  // The most recently used thread is the last, and is used first: its caches are warm, and the
  // others can time out.
  std::vector<Member*> idle_;
  bool lead_unassigned_ = false;
};

}  // namespace weft::base

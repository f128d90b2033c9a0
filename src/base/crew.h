// Threads that take turns leading one loop.
//
// One thread leads: it polls and runs user code inline, so that a quick piece costs no thread hop.
// A piece that blocks gives the lead away before it sleeps; from a piece that is merely slow the
// pulse takes the lead. Either way another thread leads on at once, so nothing waits behind user
// code and nesting cannot use up the threads. The thread that lost the lead finishes its piece,
// helps with the loop's backlog and then stands by.
//
// Hand-over is one atomic word: phase and sequence number of the piece of user code. The loop's own
// state belongs to the leader and is never touched inside user code, so the lead can be taken
// there.
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
  /// Leads until leave_user_code() returned false or the crew stops.
  virtual void lead() = 0;
  /// Makes a polling leader look at Crew::stopping(). Any thread.
  virtual void interrupt() = 0;
  /// Runs one piece of queued work on a thread that does not lead. False: there is none.
  virtual bool run_from_backlog() { return false; }
  /// Whether queued work has waited so long that an extra thread is due.
  virtual bool backlog_starves() { return false; }
};

class Crew : public std::enable_shared_from_this<Crew> {
 public:
  struct Limits {
    size_t running = 16;     // pieces of backlog work are started only below this many
    size_t threads = 4096;   // in all, including blocked ones
    size_t standing_by = 4;  // idle threads beyond this end
  };

  /// Every thread holds `keepalive`: the objects that user code may still touch after stop().
  Crew(std::string name, Limits limits, CrewLoop& loop, Pulse& pulse,
       std::weak_ptr<void> keepalive);

  /// Throws kLimitExceeded if no thread can be started.
  void start();
  /// Ends the threads; those still in user code after `patience` are left to end by themselves.
  /// False if there were such.
  bool stop(Duration patience);
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  // For the leader, around each piece of user code.
  void enter_user_code();
  /// False: another thread leads now; return from lead() without touching the loop's state.
  bool leave_user_code();
  /// Inside user code that was entered as leader: whether this thread leads still.
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
  std::vector<Member*> idle_;  // most recently used last: warm caches, and old ones time out
  bool lead_unassigned_ = false;
};

}  // namespace weft::base

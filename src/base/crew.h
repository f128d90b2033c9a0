// Threads that take turns leading loops, and work off what those leave over.
//
// A loop has one leader at a time: the leader polls and runs user code itself, so that a quick
// function needs no change of threads. If user code blocks, its thread gives the lead away before
// it sleeps; if user code is slow, the pulse takes the lead from its thread. In both cases another
// thread leads on at once, so no event waits for user code, and nested calls cannot use up the
// threads. The thread that lost the lead finishes its user code, helps with the backlog and then
// stands by.
//
// One atomic word hands the lead of a loop over (base/lead.h). The loop's own state belongs to the
// leader and is never touched inside user code, so another thread can take it over then.
//
// Slots limit how many threads use a CPU for user code (base/slots.h). A thread gives its slot back
// while it blocks; if it blocks where Weft cannot see it, the pulse notices that the thread has
// used no CPU for a tick and counts the slot as free.
//
// Helpers are threads without a lead that run tasks of the backlog. At most one more helper is
// woken at a time (base/search.h): one that searches and finds a task calls the next. If all slots
// are in use and no task was taken for 20 ticks, a helper runs one that is not known to take long
// beyond the limit, or any if there was none such five times in a row: functions that never return
// do not make a worker useless.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/lead.h"
#include "base/mutex.h"
#include "base/pulse.h"
#include "base/search.h"
#include "base/slots.h"
#include "weft/detail/ambient.h"

namespace weft::base {

class CrewLoop {
 public:
  virtual ~CrewLoop() = default;
  /// Leads until leave_user_code() returns false or the crew stops.
  virtual void lead() = 0;
  /// Makes a polling leader look at Crew::stopping(). Any thread.
  virtual void interrupt() = 0;
  /// The pulse has taken the lead from a thread whose user code is slow. Called by the pulse.
  virtual void on_slow_user_code() {}
  /// The crew was stopped and this is its last thread: the loop drops what its leaders held.
  virtual void on_end() {}
};

/// Tasks for threads that do not lead.
class CrewBacklog {
 public:
  virtual ~CrewBacklog() = default;
  /// Tasks that nobody has taken. Any thread; seen by a thread that was told of them.
  virtual size_t waiting() const = 0;
  /// Takes a task, calls Crew::found_work() and runs the task. False: there is none.
  virtual bool run_one() = 0;
  /// The same with a task that is not known to take long, and now and then with any. The thread has
  /// no slot.
  virtual bool run_short() { return false; }
};

class Crew : public std::enable_shared_from_this<Crew> {
 public:
  struct Limits {
    size_t running = 16;     // slots
    size_t threads = 4096;   // including blocked ones; loops are led even beyond that
    size_t standing_by = 4;  // idle threads beyond this end
    Duration spin{0};        // for which a helper looks for further tasks before it stands by
  };

  /// Every thread of the crew holds `keepalive` while it runs, so that the object still exists for
  /// user code that stop() did not wait for.
  Crew(std::string name, Limits limits, Pulse& pulse, std::weak_ptr<void> keepalive);
  ~Crew();

  // Before start().
  void add(CrewLoop& loop);
  void set_backlog(CrewBacklog& backlog) { backlog_ = &backlog; }

  /// A thread leads the loop from now on; later calls for the same loop do nothing. Any thread.
  /// Throws kLimitExceeded if no thread can be started for the first loop of all.
  void start(const CrewLoop& loop);
  /// Ends the threads. Threads that are still in user code after `patience` are left to end by
  /// themselves; then it returns false.
  bool stop(Duration patience);
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  // The leader calls these around each run of user code.
  /// `rare`: this kind comes so seldom by itself that the pulse need not stay awake for the next.
  void enter_user_code(bool rare = false);
  /// False if another thread leads now: return from lead() without touching the loop's state.
  bool leave_user_code();
  /// Inside user code that was entered as leader: whether this thread still leads.
  bool still_leads() const;
  /// Gives the lead away at once, for user code that is known to take long.
  void give_up_lead();

  // Slots, of the calling thread, which is one of this crew.
  /// Whether the thread has a slot now. Without one it must not run user code.
  bool take_slot();
  void give_slot();

  // The backlog.
  /// Whether leaders have to take tasks from the backlog, since no other thread has a slot, or the
  /// system gives no further thread.
  bool needs_leaders_help() const {
    return !out_of_threads() &&
           (!slots_.has_free() || no_more_threads_.load(std::memory_order_relaxed));
  }
  /// Whether a slot is free, but the system gives no thread that could use it.
  bool lacks_threads() const {
    return !out_of_threads() && slots_.has_free() &&
           no_more_threads_.load(std::memory_order_relaxed);
  }
  /// A task was added to the backlog. Any thread may say so.
  void on_task_added();
  /// Wakes a helper unless one searches or no slot is free.
  void call_for_help();
  /// This thread has taken a task from the backlog and is about to run it.
  void found_work();

  /// Slots in use.
  size_t running() const { return slots_.used(); }
  size_t limit() const { return limits_.running; }
  size_t threads() const { return alive_.load(std::memory_order_relaxed); }
  bool out_of_threads() const { return threads() >= limits_.threads; }
  size_t idle() const;

  /// Called by the pulse.
  void on_tick();

 private:
  class Member;
  class Enrolment;
  /// A loop, and who leads it.
  struct alignas(64) Post {
    explicit Post(CrewLoop& the_loop) : loop(the_loop) {}
    CrewLoop& loop;
    Lead lead;
    bool started = false;     // these under the crew's mutex
    bool unassigned = false;  // no thread could be had to lead
  };
  struct Duty {
    enum class Kind { kNone, kLead, kHelp, kRescue } kind = Kind::kNone;
    Post* post = nullptr;
  };

  static Member& me();
  bool take_lead_from(Post& post, Lead::Run run);
  void assign(Duty duty);
  bool spawn(Duty duty);
  void make_room_for_threads();
  void wake_leaders();
  void note_unassigned(Duty duty);
  Duty take_unassigned() WEFT_REQUIRES(mutex_);
  std::vector<Duty> take_all_unassigned();
  void thread_main(Duty duty);
  void end(Member& member);
  void count_end() WEFT_REQUIRES(mutex_);
  void take_turn(Member& member, Duty duty);
  Duty stand_by(Member& member);
  void help(Member& member, bool was_called);
  bool work_is_possible() const;
  void free_slots_of_blocked();
  void rescue_if_starving();

  const std::string name_;
  const Limits limits_;
  Pulse& pulse_;
  std::weak_ptr<void> keepalive_;
  std::vector<std::unique_ptr<Post>> posts_;  // constant after start()
  CrewBacklog* backlog_ = nullptr;
  uint32_t taken_at_last_tick_ = 0;  // pulse only, like the next
  int starving_ticks_ = 0;

  Slots slots_;
  Search search_;
  std::atomic<uint32_t> taken_{0};  // tasks that were taken; not all are counted
  alignas(64) std::atomic<size_t> alive_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> no_more_threads_{false};  // the last one that was wanted could not be had
  std::atomic<size_t> unassigned_leads_{0};   // changed under the mutex

  mutable Mutex mutex_;
  std::condition_variable all_gone_;
  std::vector<Member*> members_ WEFT_GUARDED_BY(mutex_);
  // The most recently used thread is the last, and is used first: its caches are warm, and the
  // others can time out.
  std::vector<Member*> idle_ WEFT_GUARDED_BY(mutex_);
  size_t first_to_look_at_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::base

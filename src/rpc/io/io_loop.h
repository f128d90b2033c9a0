// The agent's I/O loop: connects and accepts, receives replies that no waiting caller receives,
// runs timers and the continuations of futures. It never waits behind user code.
//
// A crew of its own leads the loop, so that a continuation that blocks holds up nothing.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/crew.h"
#include "base/mutex.h"
#include "transport/poller.h"
#include "weft/detail/future_core.h"
#include "weft/detail/task.h"

namespace weft::rpc {

class IoLoop;

/// Something with a connection or a time that the loop looks after. Its methods run on the leader
/// and are quick.
class IoClient {
 public:
  virtual ~IoClient() = default;
  virtual void on_event(bool readable, bool writable) = 0;
  virtual void on_time(base::Time now) = 0;
  /// When on_time() is called next; Time::max(): not before the next IoLoop::set_due().
  base::Time due() const {
    return base::Time(base::Duration(due_.load(std::memory_order_relaxed)));
  }

 private:
  friend class IoLoop;
  static constexpr base::Time::rep kNever = base::Time::max().time_since_epoch().count();
  std::atomic<base::Time::rep> due_{kNever};
  // The earliest time for which it stands in the loop's queue: due_ or earlier.
  std::atomic<base::Time::rep> queued_for_{kNever};
  uint64_t token_ = 0;
};

class IoLoop final : public base::CrewLoop,
                     public base::CrewBacklog,
                     public detail::ContinuationSink {
 public:
  explicit IoLoop(std::shared_ptr<base::Clock> clock);
  void set_crew(std::shared_ptr<base::Crew> crew) {
    crew_ = std::move(crew);
    crew_->add(*this);
    crew_->set_backlog(*this);
  }

  /// Registers a client, with room for its timer; returns the token that watch() and remove() take.
  /// Any thread.
  uint64_t add(std::shared_ptr<IoClient> client);
  void remove(uint64_t token);

  // Connections and listeners. An event is reported for as long as it lasts and is of interest.
  bool watch_new(transport::EventSource& source, uint32_t interest, uint64_t token) {
    return poller_->add(source, interest, token);
  }
  void watch(transport::EventSource& source, uint32_t interest, uint64_t token) {
    poller_->change(source, interest, token);
  }
  void unwatch(transport::EventSource& source, uint64_t token) { poller_->remove(source, token); }

  /// on_time() of a registered client is called at `due` or soon after. Takes no memory. Any
  /// thread.
  void set_due(IoClient& client, base::Time due) noexcept;
  const base::Clock& clock() const { return *clock_; }

  void post(detail::Continuation* list) override;
  /// Runs `task`, on behalf of nobody's call, on a thread that may block.
  void post_task(detail::Task task);
  /// The same for a task that takes long: beside the loop and other such tasks, as many at a time
  /// as the crew has slots.
  void post_long_task(detail::Task task);
  bool on_this_thread() const;
  /// Continuations and tasks that are posted and have not returned.
  size_t unfinished() const { return unfinished_.load(std::memory_order_acquire); }

  /// After the crew stopped: runs what is posted; from now on what is posted runs at once.
  void finish();

  void lead() override;
  void interrupt() override { poller_->wake(); }
  size_t waiting() const override { return long_tasks_waiting_.load(std::memory_order_seq_cst); }
  bool run_one() override;

 private:
  base::Time run_timers(base::Time now);
  template <typename F>
  static bool outlive(const F& work) noexcept;
  void retry_soon(IoClient& client, base::Time now) noexcept;
  void queue(IoClient& client, base::Time::rep at) noexcept;
  void rebuild_timers() WEFT_REQUIRES(mutex_);
  struct Timer {
    base::Time::rep at;
    uint64_t token;
    bool operator>(const Timer& other) const { return at > other.at; }
  };
  struct DueTimer {
    base::Time::rep at;
    std::shared_ptr<IoClient> client;
  };
  std::vector<DueTimer> take_due(base::Time::rep now);
  /// False: the lead was lost.
  bool run_continuations();
  bool help_once();
  std::shared_ptr<IoClient> find(uint64_t token);

  std::shared_ptr<base::Clock> clock_;
  // Shared: threads that post tasks may hold the loop longer than the agent, whose crew it is.
  std::shared_ptr<base::Crew> crew_;
  std::shared_ptr<transport::Poller> poller_;  // shared with a clock that may outlive the loop
  std::atomic<base::Time::rep> sleeping_until_{0};

  base::Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<IoClient>> clients_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_token_ WEFT_GUARDED_BY(mutex_) = 1;
  // A heap, the earliest first. A client's queued_for_ is the time of one timer in it. The client's
  // other timers, and those of removed clients, are outdated. Invariant: there is room for twice as
  // many timers as there are clients.
  std::vector<Timer> timers_ WEFT_GUARDED_BY(mutex_);
  detail::Continuation* first_ WEFT_GUARDED_BY(mutex_) = nullptr;
  detail::Continuation* last_ WEFT_GUARDED_BY(mutex_) = nullptr;
  std::deque<detail::Task> long_tasks_ WEFT_GUARDED_BY(mutex_);
  std::atomic<size_t> long_tasks_waiting_{0};
  bool finished_ WEFT_GUARDED_BY(mutex_) = false;
  std::atomic<size_t> unfinished_{0};
};

}  // namespace weft::rpc

// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/io/io_loop.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/room.h"

namespace weft::rpc {

namespace {
thread_local const IoLoop* leading = nullptr;
constexpr base::Time::rep kNever = base::Time::max().time_since_epoch().count();
// Between two looks at connections and timers.
constexpr int kContinuationsPerTurn = 64;
constexpr auto kContinuationTime = std::chrono::microseconds(200);

// On behalf of no call.
void run_for_nobody(detail::Task& task) noexcept {
  const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
  try {
    task();
  } catch (const std::exception& error) {  // no memory
    base::log(LogLevel::kError, "io", "a task was cut short: {}", error.what());
  }
}
}  // namespace

IoLoop::IoLoop(std::shared_ptr<base::Clock> clock)
    : clock_(std::move(clock)), poller_(std::make_shared<transport::Poller>()) {
  if (clock_->runs_by_itself()) return;
  clock_->on_advance([weak = std::weak_ptr(poller_)] {
    if (auto poller = weak.lock()) poller->wake();
  });
}

uint64_t IoLoop::add(std::shared_ptr<IoClient> client) {
  const base::MutexLock lock(mutex_);
  base::make_room(timers_, 2 * (clients_.size() + 1));
  const uint64_t token = client->token_ = next_token_++;
  clients_.emplace(token, std::move(client));
  return token;
}

void IoLoop::remove(uint64_t token) {
  std::shared_ptr<IoClient> last;  // destroyed outside the lock
  const base::MutexLock lock(mutex_);
  auto found = clients_.find(token);
  if (found == clients_.end()) return;
  last = std::move(found->second);
  clients_.erase(found);
}

std::shared_ptr<IoClient> IoLoop::find(uint64_t token) {
  const base::MutexLock lock(mutex_);
  auto found = clients_.find(token);
  return found == clients_.end() ? nullptr : found->second;
}

// A time that is put off, as that of a connection is with every frame, costs no lock: the loop
// finds the client at the old time and queues it anew.
void IoLoop::set_due(IoClient& client, base::Time due) noexcept {
  const base::Time::rep at = due.time_since_epoch().count();
  if (client.due_.exchange(at, std::memory_order_seq_cst) != at) queue(client, at);
}

void IoLoop::queue(IoClient& client, base::Time::rep at) noexcept {
  if (at >= client.queued_for_.load(std::memory_order_seq_cst)) return;
  {
    const base::MutexLock lock(mutex_);
    if (at >= client.queued_for_.load(std::memory_order_seq_cst)) return;
    if (!clients_.contains(client.token_)) return;
    client.queued_for_.store(at, std::memory_order_seq_cst);
    if (timers_.size() == timers_.capacity()) {
      rebuild_timers();  // this client's among them
    } else {
      timers_.push_back({at, client.token_});
      std::push_heap(timers_.begin(), timers_.end(), std::greater<>());
    }
  }
  if (on_this_thread()) return;
  // The loop reads the earliest time after it announced when it wakes: either it sees this time, or
  // this thread sees the announcement.
  if (at < sleeping_until_.load(std::memory_order_seq_cst)) poller_->wake();
}

// One timer for each client that has a time: half the room at most.
void IoLoop::rebuild_timers() {
  timers_.clear();
  for (const auto& [token, client] : clients_) {
    const base::Time::rep at = client->queued_for_.load(std::memory_order_relaxed);
    if (at != kNever) timers_.push_back({at, token});
  }
  std::make_heap(timers_.begin(), timers_.end(), std::greater<>());
}

void IoLoop::post(detail::Continuation* list) {
  detail::Continuation* end = list;
  size_t count = 1;
  for (; end->next; end = end->next) ++count;
  bool was_empty = false;
  bool run_here;
  {
    const base::MutexLock lock(mutex_);
    run_here = finished_;
    if (!run_here) {
      was_empty = first_ == nullptr;
      (was_empty ? first_ : last_->next) = list;
      last_ = end;
      unfinished_.fetch_add(count, std::memory_order_acq_rel);
    }
  }
  if (run_here) return detail::run_continuations(list);
  if (was_empty && !on_this_thread()) poller_->wake();
}

void IoLoop::post_task(detail::Task task) {
  auto continuation = std::make_unique<detail::Continuation>();
  continuation->task = std::move(task);
  post(continuation.release());
}

void IoLoop::post_long_task(detail::Task task) {
  bool run_here;
  {
    const base::MutexLock lock(mutex_);
    run_here = finished_;
    if (!run_here) {
      long_tasks_.push_back(std::move(task));
      long_tasks_waiting_.store(long_tasks_.size(), std::memory_order_seq_cst);
      unfinished_.fetch_add(1, std::memory_order_acq_rel);
    }
  }
  if (run_here) return run_for_nobody(task);
  crew_->on_task_added();
}

bool IoLoop::run_one() {
  detail::Task task;
  {
    const base::MutexLock lock(mutex_);
    if (long_tasks_.empty()) return false;
    task = std::move(long_tasks_.front());
    long_tasks_.pop_front();
    long_tasks_waiting_.store(long_tasks_.size(), std::memory_order_seq_cst);
  }
  crew_->found_work();
  run_for_nobody(task);
  task = {};  // with what it holds, before it counts as finished
  unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

// Runs a long task if no other thread can be had for it. False: the lead was lost.
bool IoLoop::help_once() {
  if (waiting() == 0 || !crew_->lacks_threads() || !crew_->take_slot()) return true;
  crew_->enter_user_code(/*rare=*/true);
  leading = nullptr;
  run_one();
  if (!crew_->leave_user_code()) return false;
  crew_->give_slot();
  leading = this;
  return true;
}

bool IoLoop::on_this_thread() const { return leading == this; }

void IoLoop::lead() {
  leading = this;
  while (!crew_->stopping()) {
    if (!run_continuations() || !help_once()) break;
    sleeping_until_.store(kNever, std::memory_order_seq_cst);
    const base::Time now = clock_->now();
    const base::Time due = run_timers(now);
    sleeping_until_.store(due.time_since_epoch().count(), std::memory_order_seq_cst);
    std::optional<base::Duration> limit;
    if (due != base::Time::max() && clock_->runs_by_itself()) limit = due - now;
    {
      const base::MutexLock lock(mutex_);
      if (first_ || (waiting() > 0 && crew_->lacks_threads())) limit = base::Duration(0);
    }
    std::span<const transport::PollEvent> events;
    outlive([&] { events = poller_->wait(limit); });
    for (const transport::PollEvent& event : events) {
      const auto client = find(event.token);
      // An event that is still there is reported again.
      if (client) outlive([&] { client->on_event(event.readable, event.writable); });
    }
  }
  leading = nullptr;
}

// A client whose work lacks memory does not end the loop of all.
template <typename F>
bool IoLoop::outlive(const F& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    base::log(LogLevel::kError, "io", "work on a connection was put off: {}", error.what());
    std::this_thread::sleep_for(base::kMomentWithoutMemory);
    return false;
  }
}

void IoLoop::finish() {
  detail::Continuation* left;
  std::deque<detail::Task> left_tasks;
  {
    const base::MutexLock lock(mutex_);
    finished_ = true;
    left = std::exchange(first_, nullptr);
    left_tasks = std::exchange(long_tasks_, {});
    long_tasks_waiting_.store(0, std::memory_order_seq_cst);
  }
  size_t count = left_tasks.size();
  for (const detail::Continuation* each = left; each; each = each->next) ++count;
  // These first: continuations may wait for what they do.
  for (detail::Task& task : left_tasks) run_for_nobody(task);
  detail::run_continuations(left);
  // Not all: a thread that outlasted the crew counts its own.
  unfinished_.fetch_sub(count, std::memory_order_acq_rel);
}

// A timer that is taken is in the result, for which there is room.
std::vector<IoLoop::DueTimer> IoLoop::take_due(base::Time::rep now) {
  std::vector<DueTimer> due;
  const base::MutexLock lock(mutex_);
  while (!timers_.empty() && timers_.front().at <= now) {
    try {
      base::make_room(due, due.size() + 1);
    } catch (const std::bad_alloc&) {
      break;  // the others' time comes in the next turn
    }
    std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
    const Timer timer = timers_.back();
    timers_.pop_back();
    auto found = clients_.find(timer.token);
    if (found != clients_.end()) due.push_back({timer.at, found->second});
  }
  return due;
}

base::Time IoLoop::run_timers(base::Time now) {
  const base::Time::rep at = now.time_since_epoch().count();
  for (auto& [queued_for, client] : take_due(at)) {
    // From here on a time that is set is queued again; one that was set before is seen below.
    base::Time::rep expected = queued_for;
    client->queued_for_.compare_exchange_strong(expected, kNever, std::memory_order_seq_cst);
    base::Time::rep when = client->due_.load(std::memory_order_seq_cst);
    while (when <= at &&
           !client->due_.compare_exchange_weak(when, kNever, std::memory_order_seq_cst)) {
    }
    IoClient& its = *client;
    if (when > at) {
      queue(its, when);
    } else if (!outlive([&its, now] { its.on_time(now); })) {
      retry_soon(its, now);
    }
  }
  const base::MutexLock lock(mutex_);
  return timers_.empty() ? base::Time::max() : base::Time(base::Duration(timers_.front().at));
}

void IoLoop::retry_soon(IoClient& client, base::Time now) noexcept {
  const base::Time soon = now + base::kMomentWithoutMemory;
  if (client.due() > soon) set_due(client, soon);
}

// As many as fit into a turn: connections and timers do not wait for those that make new ones.
bool IoLoop::run_continuations() {
  const base::Time until = std::chrono::steady_clock::now() + kContinuationTime;
  for (int i = 0; i < kContinuationsPerTurn; ++i) {
    if (i > 0 && std::chrono::steady_clock::now() >= until) return true;
    detail::Continuation* next;
    {
      const base::MutexLock lock(mutex_);
      next = first_;
      if (!next) return true;
      first_ = next->next;
      next->next = nullptr;
    }
    crew_->enter_user_code(/*rare=*/true);
    leading = nullptr;  // user code may lose the lead; its posts must wake the leader
    detail::run_continuations(next);
    unfinished_.fetch_sub(1, std::memory_order_acq_rel);
    if (!crew_->leave_user_code()) return false;
    leading = this;
  }
  return true;
}

}  // namespace weft::rpc

// Threads as coroutines: one runs at a time, and which one goes on at a pause is the test's choice.
// For simulations of what threads do to each other, in any order, the same again for a seed.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::test {

constexpr uint64_t kNever = UINT64_MAX;

struct Violation : std::runtime_error {
  using runtime_error::runtime_error;
};

struct Wait {
  std::function<bool()> until;  // empty: go on at any time
  uint64_t at_latest = kNever;
};

/// A thread, and where it goes on.
struct Thread {
  std::coroutine_handle<> at;
  Wait wait;
};
inline Thread* current = nullptr;

struct Pause {
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> here) const { current->at = here; }
  void await_resume() const {}
};
// co_await: lets other threads run.
inline Pause pause() {
  current->wait = {};
  return {};
}
// `condition` has no destructor: compilers do not agree about temporaries of a co_await.
template <typename F>
Pause pause_until(const F& condition, uint64_t at_latest = kNever) {
  static_assert(std::is_trivially_copyable_v<F>);
  current->wait = {condition, at_latest};
  return {};
}
inline Pause sleep_until(uint64_t time) {
  return pause_until([] { return false; }, time);
}

/// A function of a thread that pauses.
class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;
  struct Return {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle done) const noexcept {
      return done.promise().caller;
    }
    void await_resume() const noexcept {}
  };
  struct promise_type {
    std::coroutine_handle<> caller = std::noop_coroutine();
    std::exception_ptr error;
    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Return final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) {
    handle_.promise().caller = caller;
    return handle_;
  }
  void await_resume() const { rethrow(); }

  std::coroutine_handle<> handle() const { return handle_; }
  bool done() const { return handle_.done(); }
  void rethrow() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

 private:
  Handle handle_;
};

/// All threads of a simulation. Time passes by one for each step, and to the next wake-up if nobody
/// can do anything before.
class SimulatedThreads {
 public:
  void begin(Task task) {
    threads_.push_back({task.handle(), {}});
    tasks_.push_back(std::move(task));
  }
  size_t size() const { return tasks_.size(); }
  bool is_done(size_t i) const { return tasks_[i].done(); }
  uint64_t now() const { return now_; }

  /// Runs one thread until it pauses: the first that can, from the thread `first` on. `alarm`: a
  /// time that conditions may wait for. False: nobody will ever do anything again.
  bool run_one(uint64_t first, uint64_t alarm = kNever) {
    ++now_;
    for (size_t k = 0; k < tasks_.size(); ++k) {
      const size_t i = (first + k) % tasks_.size();
      if (!is_runnable(i)) continue;
      current = &threads_[i];
      current->at.resume();
      tasks_[i].rethrow();
      return true;
    }
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (!tasks_[i].done()) alarm = std::min(alarm, threads_[i].wait.at_latest);
    }
    if (alarm == kNever) return false;
    now_ = std::max(now_, alarm);
    return true;
  }

  /// Runs threads until nobody will ever do anything again, then calls `check_end`. `first` and
  /// `alarm` give what run_one() is called with. Returns what went wrong, if anything.
  template <typename First, typename Alarm, typename Check>
  std::optional<std::string> run_to_rest(uint64_t most_steps, const First& first,
                                         const Alarm& alarm, const Check& check_end) {
    try {
      for (uint64_t step = 0; step < most_steps; ++step) {
        if (run_one(first(), alarm())) continue;
        check_end();
        return std::nullopt;
      }
      return "it never comes to rest";
    } catch (const Violation& violation) {
      return violation.what();
    }
  }

 private:
  bool is_runnable(size_t i) const {
    if (tasks_[i].done()) return false;
    const Wait& wait = threads_[i].wait;
    return !wait.until || wait.until() || now_ >= wait.at_latest;
  }

  uint64_t now_ = 0;
  std::deque<Thread> threads_;
  std::deque<Task> tasks_;
};

}  // namespace weft::test

// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/future_core.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/demangle.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/process_exit.h"

namespace weft::detail {

void run_continuations(Continuation* list) noexcept {
  while (list) {
    std::unique_ptr<Continuation> mine(list);
    list = mine->next;
    Ambient::Scope scope(std::move(mine->ambient));
    try {
      mine->task();  // an exception of user code settles the continuation's own future
    } catch (const std::exception& error) {  // no memory
      base::log(LogLevel::kError, "future", "a continuation was cut short: {}", error.what());
    }
  }
}

// If a future is destroyed while it is pending, its continuations never run: nobody can settle it
// any more.
FutureCore::~FutureCore() {
  Continuation* node = continuations_.load(std::memory_order_acquire);
  while (node && node != settled_mark()) delete std::exchange(node, node->next);
}

Continuation* FutureCore::settled_mark() noexcept {
  static Continuation mark;
  return &mark;
}

bool FutureCore::wait_until(std::optional<SteadyTime> until) {
  if (ready()) return true;
  BlockingRegion region;
  for (;;) {
    mark_sleeper();
    if (sleep_if_marked(until)) return true;
    if (until && std::chrono::steady_clock::now() >= *until) return ready();
  }
}

void FutureCore::mark_sleeper() noexcept {
  uint32_t expected = kPending;
  status_.compare_exchange_strong(expected, kPendingWithSleepers, std::memory_order_acq_rel);
}

bool FutureCore::sleep_if_marked(std::optional<SteadyTime> until) {
  for (;;) {
    const uint32_t status = status_.load(std::memory_order_acquire);
    if (status >= kValue) return true;
    if (status == kPending) return false;
    if (until && std::chrono::steady_clock::now() >= *until) return false;
    base::futex_wait(status_, kPendingWithSleepers, until);
  }
}

void FutureCore::wake_sleepers() {
  uint32_t expected = kPendingWithSleepers;
  if (status_.compare_exchange_strong(expected, kPending, std::memory_order_acq_rel)) {
    base::futex_wake_all(status_);
  }
}

void FutureCore::settle(uint32_t status, ContinuationSink* sink) {
  if (status_.exchange(status, std::memory_order_acq_rel) == kPendingWithSleepers) {
    base::futex_wake_all(status_);
  }
  Continuation* newest = continuations_.exchange(settled_mark(), std::memory_order_acq_rel);
  Continuation* in_order = nullptr;
  while (newest) {
    Continuation* next = std::exchange(newest->next, in_order);
    in_order = std::exchange(newest, next);
  }
  if (!in_order) return;
  if (sink) {
    sink->post(in_order);
  } else {
    run_continuations(in_order);
  }
}

void FutureCore::settle_error(std::exception_ptr error, ContinuationSink* sink) {
  exception_ = std::move(error);
  settle(kFailed, sink);
}

void FutureCore::settle_error(const Error& error, ContinuationSink* sink) {
  error_ = error;
  settle(kFailed, sink);
}

std::exception_ptr FutureCore::exception() const {
  return error_ ? std::make_exception_ptr(*error_) : exception_;
}

void FutureCore::attach(Task task) {
  auto node = std::make_unique<Continuation>();
  node->task = std::move(task);
  node->ambient = Ref<Ambient>::share(Ambient::current());
  Continuation* head = continuations_.load(std::memory_order_acquire);
  for (;;) {
    if (head == settled_mark()) {
      node->next = nullptr;  // an attempt above has set it, and then settle() came first
      run_continuations(node.release());
      return;
    }
    node->next = head;
    if (continuations_.compare_exchange_weak(head, node.get(), std::memory_order_acq_rel)) break;
  }
  node.release();
  on_attached();
}

namespace {

// To be called in a catch block. Returns the type and the first line of the text.
std::string describe_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& other) {
    const std::string text = other.what();
    return base::demangle(typeid(other)) + ": " + text.substr(0, text.find('\n'));
  } catch (...) {
    return "a value that is no exception";
  }
}

// Counts the announced futures of the process that were settled. A thread in wait_for_any() sleeps
// until this changes and then looks at its own futures.
std::atomic<uint32_t> announcements{0};
std::atomic<uint32_t> waiting_for_any{0};

}  // namespace

void FutureCore::announce() {
  if (announced_.load(std::memory_order_acquire)) return;
  const Ambient::Scope nobody{Ref<Ambient>()};  // the continuation must not keep a call alive
  attach([] {
    announcements.fetch_add(1, std::memory_order_seq_cst);
    if (waiting_for_any.load(std::memory_order_seq_cst) > 0) base::futex_wake_all(announcements);
  });
  announced_.store(true, std::memory_order_release);  // not if there was no memory to attach it
}

size_t wait_for_any(std::span<FutureCore* const> futures) {
  if (futures.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "wait_any: there is no future to wait for");
  }
  const auto find_ready = [futures] {
    return std::find_if(futures.begin(), futures.end(), [](FutureCore* f) { return f->ready(); });
  };
  auto found = find_ready();
  if (found == futures.end()) {
    for (FutureCore* future : futures) future->announce();
    BlockingRegion region;
    waiting_for_any.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t seen = announcements.load(std::memory_order_seq_cst);
      found = find_ready();
      if (found != futures.end()) break;
      base::futex_wait(announcements, seen, std::nullopt);
    }
    waiting_for_any.fetch_sub(1, std::memory_order_seq_cst);
  }
  return static_cast<size_t>(found - futures.begin());
}

void log_escaped_exception() noexcept {
  try {
    base::log(LogLevel::kError, "future",
              "a callback given to on_ready() threw {}; nobody is told of it: catch it there, or "
              "use then()",
              describe_current_exception());
  } catch (...) {
    // There is no memory for a line of the log.
  }
}

void FutureCore::rethrow() const {
  if (error_) {
    if (error_->code() == ErrorCode::kShuttingDown) base::stay_if_process_exits();
    throw *error_;
  }
  std::rethrow_exception(exception_);
}

Error FutureCore::error() const {
  if (error_) return *error_;
  try {
    std::rethrow_exception(exception_);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& other) {
    return Error(ErrorCode::kCallbackFailed, base::demangle(typeid(other)) + ": " + other.what());
  } catch (...) {
    return Error(ErrorCode::kCallbackFailed, "a continuation threw a value that is no exception");
  }
}

}  // namespace weft::detail

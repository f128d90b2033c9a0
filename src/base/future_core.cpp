// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/future_core.h"

#include <memory>
#include <utility>

#include "base/demangle.h"
#include "base/futex.h"

namespace weft::detail {

void run_continuations(Continuation* list) noexcept {
  while (list) {
    std::unique_ptr<Continuation> mine(list);
    list = mine->next;
    Ambient::Scope scope(std::move(mine->ambient));
    mine->task();  // settles a future of its own; what it throws ends there
  }
}

// A future that is dropped while pending drops its continuations unrun: nobody can settle it any
// more.
FutureCore::~FutureCore() {
  Continuation* node = continuations_.load(std::memory_order_acquire);
  while (node && node != settled_mark()) delete std::exchange(node, node->next);
}

Continuation* FutureCore::settled_mark() noexcept {
  static Continuation mark;
  return &mark;
}

bool FutureCore::has_continuations() const noexcept {
  Continuation* head = continuations_.load(std::memory_order_acquire);
  return head && head != settled_mark();
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
      node->next = nullptr;  // set by an attempt that lost against settle()
      run_continuations(node.release());
      return;
    }
    node->next = head;
    if (continuations_.compare_exchange_weak(head, node.get(), std::memory_order_acq_rel)) break;
  }
  node.release();
  on_attached();
}

void FutureCore::rethrow() const {
  if (error_) throw *error_;
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

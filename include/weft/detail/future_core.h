// The untyped half of a future: outcome, waiters, continuations.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "weft/detail/ambient.h"
#include "weft/detail/ref_counted.h"
#include "weft/detail/task.h"
#include "weft/error.h"
#include "weft/export.h"

namespace weft::detail {

using SteadyTime = std::chrono::steady_clock::time_point;

/// A continuation that became runnable; the thread that settled the future runs or posts it.
struct Continuation {
  Task task;
  Ref<Ambient> ambient;
  Continuation* next = nullptr;
};

/// Where continuations go when the settling thread must not run user code itself (a caller that
/// receives replies for others). Null means: run them here.
class WEFT_API ContinuationSink {
 public:
  virtual void post(Continuation* list) = 0;

 protected:
  ~ContinuationSink() = default;
};

WEFT_API void run_continuations(Continuation* list) noexcept;

/// Has exactly one outcome, set by settle_value() or settle_error(). Promises and operations decide
/// by claim() which thread sets it; for a call, the thread that takes the call out of its
/// connection's table does.
class WEFT_API FutureCore : public RefCounted {
 public:
  bool ready() const noexcept { return status_.load(std::memory_order_acquire) >= kValue; }
  bool failed() const noexcept { return status_.load(std::memory_order_acquire) == kFailed; }

  /// Blocks until there is an outcome or `until` passed. False: not ready in time.
  /// Overridden by calls, whose waiting thread receives its own reply.
  virtual bool wait_until(std::optional<SteadyTime> until);
  virtual void cancel() {}

  std::exception_ptr exception() const;
  [[noreturn]] void rethrow() const;
  Error error() const;

  void attach(Task task);
  /// Has wait_for_any() look again when there is an outcome. Attaches a continuation, unless an
  /// earlier call has.
  void announce();

  /// True for the first caller only: it decides the outcome.
  bool claim() noexcept { return !claimed_.exchange(true, std::memory_order_acq_rel); }
  void settle_error(std::exception_ptr error, ContinuationSink* sink = nullptr);
  void settle_error(const Error& error, ContinuationSink* sink = nullptr);

 protected:
  ~FutureCore() override;
  void settle(uint32_t status, ContinuationSink* sink);
  /// Announces a sleeper, then sleeps until there is an outcome (true), wake_sleepers() was called
  /// since the announcement, or `until` passed.
  void mark_sleeper() noexcept;
  bool sleep_if_marked(std::optional<SteadyTime> until);
  void wake_sleepers();
  /// Called after a continuation was added to a pending future.
  virtual void on_attached() {}

  static constexpr uint32_t kPending = 0;
  static constexpr uint32_t kPendingWithSleepers = 1;
  static constexpr uint32_t kValue = 2;
  static constexpr uint32_t kFailed = 3;

 private:
  static Continuation* settled_mark() noexcept;

  std::atomic<uint32_t> status_{kPending};
  std::atomic<bool> claimed_{false};
  std::atomic<bool> announced_{false};
  std::atomic<Continuation*> continuations_{nullptr};
  // One of the two. An Error is kept as such: every thread that asks throws one of its own, and no
  // exception object is shared between threads.
  std::optional<Error> error_;
  std::exception_ptr exception_;
};

/// The index of a future that has an outcome; waits for one. Throws kInvalidArgument if there is no
/// future.
WEFT_API size_t wait_for_any(std::span<FutureCore* const> futures);

/// In a catch block: logs the exception of a callback, of which nobody else will hear.
WEFT_API void log_escaped_exception() noexcept;

template <typename T>
class FutureState : public FutureCore {
 public:
  void settle_value(T value, ContinuationSink* sink = nullptr) {
    value_.emplace(std::move(value));
    settle(kValue, sink);
  }
  const T& value() const { return *value_; }
  T take_value() { return std::move(*value_); }

 private:
  std::optional<T> value_;
};

}  // namespace weft::detail

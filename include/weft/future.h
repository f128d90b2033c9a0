// The outcome of a call that may not have happened yet.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "weft/detail/future_core.h"
#include "weft/error.h"

namespace weft {

template <typename T>
class Future;
template <typename T>
class Promise;

namespace detail {

/// `void` results are stored as a value of this type.
using Unit = std::monostate;
template <typename T>
using Stored = std::conditional_t<std::is_void_v<T>, Unit, T>;

template <typename T>
struct Unwrapped {
  using type = T;
};
template <typename T>
struct Unwrapped<Future<T>> {
  using type = T;
};

struct FutureAccess;

template <typename F, typename T>
struct ContinuationResult {
  using type = std::invoke_result_t<F&, T>;
};
template <typename F>
struct ContinuationResult<F, void> {
  using type = std::invoke_result_t<F&>;
};

}  // namespace detail

/// A shared handle: copies refer to the same outcome. Dropping every handle does not cancel the
/// call. Thread-safe.
template <typename T>
class Future {
 public:
  using value_type = T;

  /// Waits for the outcome: returns the value or throws the error. May be called any number of
  /// times. A call's future has an outcome by the call's deadline, with two exceptions: a value
  /// with references waits until their owners have answered or are gone, and a call through an RRef
  /// whose connection broke waits until it is known whether the owner is gone. Both take about
  /// `Options::dead_after` at most if the owner does not live.
  T wait() const& {
    state().wait_until(std::nullopt);
    return get_copy();
  }
  T wait() && {
    state().wait_until(std::nullopt);
    if constexpr (!std::is_void_v<T>) {
      if (state().sole_owner() && !state().failed()) return state().take_value();
    }
    return get_copy();
  }

  /// False if there is no outcome after `limit`; the call goes on.
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> limit) const {
    using std::chrono::nanoseconds;
    const auto now = std::chrono::steady_clock::now();
    const auto most = detail::SteadyTime::max() - now;
    const bool endless = std::chrono::duration<double>(limit) > std::chrono::duration<double>(most);
    return state().wait_until(
        endless ? std::nullopt
                : std::optional(now + std::chrono::duration_cast<nanoseconds>(limit)));
  }

  bool ready() const { return state().ready(); }

  /// The error, if that is the outcome. Requires ready().
  std::optional<Error> error() const {
    if (!state().failed()) return std::nullopt;
    return state().error();
  }

  /// A future of f(value); f may return a future itself. An error skips f and is passed on; what f
  /// throws becomes the new future's outcome. For a call f runs on a thread of the agent's, else on
  /// the one that settles this future, or here if it is settled; it may block.
  template <typename F>
  auto then(F f) const
      -> Future<typename detail::Unwrapped<typename detail::ContinuationResult<F, T>::type>::type>;

  /// Runs f(*this) once there is an outcome, value or error. An exception of f is logged.
  template <typename F>
  void on_ready(F f) const {
    state().attach([self = *this, f = std::move(f)]() mutable {
      try {
        f(self);
      } catch (...) {
        detail::log_escaped_exception();  // a callback has no caller; a future of then() has
      }
    });
  }

  /// Gives the call up: the outcome becomes kCancelled, and the callee is told. Does nothing if the
  /// reply has come, or if this future is not that of a call.
  void cancel() const { state().cancel(); }

 private:
  friend struct detail::FutureAccess;
  using State = detail::FutureState<detail::Stored<T>>;
  explicit Future(detail::Ref<State> state) : state_(std::move(state)) {}

  State& state() const { return *state_; }
  T get_copy() const {
    if (state().failed()) state().rethrow();
    if constexpr (!std::is_void_v<T>) return state().value();
  }

  detail::Ref<State> state_;
};

/// Makes a future have its outcome. Move-only; destroyed without one it gives kBrokenPromise.
template <typename T>
class Promise {
 public:
  Promise() : state_(detail::make_ref<State>()) {}
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    abandon();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Promise() { abandon(); }

  Future<T> future() const;

  /// Throws kInvalidArgument if there is an outcome already.
  template <typename... V>
  void set_value(V&&... value) {
    detail::Stored<T> stored(std::forward<V>(value)...);  // may throw: before there is an outcome
    claim();
    state_->settle_value(std::move(stored));
  }
  void set_error(const Error& error) {
    claim();
    state_->settle_error(error);
  }
  void set_exception(std::exception_ptr error) {
    claim();
    state_->settle_error(std::move(error));
  }

 private:
  using State = detail::FutureState<detail::Stored<T>>;
  void claim() {
    if (!state_->claim()) {
      throw Error(ErrorCode::kInvalidArgument, "this promise has an outcome already");
    }
  }
  void abandon() {
    if (state_ && state_->claim()) {
      state_->settle_error(
          Error(ErrorCode::kBrokenPromise, "the promise was destroyed before it had an outcome"));
    }
  }
  detail::Ref<State> state_;
};

namespace detail {

struct FutureAccess {
  template <typename T>
  static Future<T> make(Ref<FutureState<Stored<T>>> state) {
    return Future<T>(std::move(state));
  }
  template <typename T>
  static FutureState<Stored<T>>& state(const Future<T>& future) {
    return future.state();
  }
};

}  // namespace detail

/// All values, in order. Throws the first error in order of the vector as soon as it is reached,
/// without waiting for the rest.
template <typename T>
auto wait_all(const std::vector<Future<T>>& futures) {
  if constexpr (std::is_void_v<T>) {
    for (const auto& future : futures) future.wait();
  } else {
    std::vector<T> values;
    values.reserve(futures.size());
    for (const auto& future : futures) values.push_back(future.wait());
    return values;
  }
}

/// The index of a future that is ready; waits for one. Throws kInvalidArgument if there is none.
template <typename T>
size_t wait_any(const std::vector<Future<T>>& futures) {
  std::vector<detail::FutureCore*> cores;
  cores.reserve(futures.size());
  for (const auto& future : futures) cores.push_back(&detail::FutureAccess::state(future));
  return detail::wait_for_any(cores);
}

/// A future that has its value already.
template <typename T>
Future<std::decay_t<T>> make_ready_future(T&& value) {
  Promise<std::decay_t<T>> promise;
  promise.set_value(std::forward<T>(value));
  return promise.future();
}

namespace detail {

/// Calls f with the value (or nothing for void) and settles `promise` with what comes of it.
template <typename R, typename F, typename Arg>
void run_into(Promise<R> promise, F& f, const Arg& value) {
  auto invoke = [&]() -> decltype(auto) {
    if constexpr (std::is_same_v<Arg, Unit>) {
      return f();
    } else {
      return f(value);
    }
  };
  bool handed_on = false;
  try {
    using Returned = decltype(invoke());
    if constexpr (std::is_same_v<std::decay_t<Returned>, Future<R>>) {
      Future<R> inner = invoke();
      handed_on = true;  // without memory for the continuation, the promise ends with it
      inner.on_ready([promise = std::move(promise)](const Future<R>& done) mutable {
        auto& state = FutureAccess::state(done);
        try {
          if (state.failed()) state.rethrow();
          promise.set_value(state.value());
        } catch (...) {
          promise.set_exception(std::current_exception());
        }
      });
    } else if constexpr (std::is_void_v<R>) {
      invoke();
      promise.set_value();
    } else {
      promise.set_value(invoke());
    }
  } catch (...) {
    if (!handed_on) promise.set_exception(std::current_exception());
  }
}

}  // namespace detail

template <typename T>
Future<T> Promise<T>::future() const {
  return detail::FutureAccess::make<T>(state_);
}

template <typename T>
template <typename F>
auto Future<T>::then(F f) const
    -> Future<typename detail::Unwrapped<typename detail::ContinuationResult<F, T>::type>::type> {
  using R = typename detail::Unwrapped<typename detail::ContinuationResult<F, T>::type>::type;
  Promise<R> promise;
  Future<R> result = promise.future();
  state().attach([source = state_, promise = std::move(promise), f = std::move(f)]() mutable {
    if (source->failed()) {
      promise.set_exception(source->exception());
    } else {
      detail::run_into(std::move(promise), f, source->value());
    }
  });
  return result;
}

}  // namespace weft

// Repeats calls of Weft's own whose functions may run twice. Sessions of references
// (rref/owner_sessions.cpp) and reports at shutdown (rpc/group/group_shutdown.cpp) repeat their
// messages by themselves.
//
// A call whose connection broke, or that could not be sent, is sent again once the member is known
// to live. It is given up when the member is gone, when its time is over, or when it has failed
// kMostAttempts times although the member lives. Any other error gives it up at once.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "rpc/io/alarm.h"
#include "rpc/own_call.h"

namespace weft::rpc {

/// The attempts after which a message is given up although its member lives.
inline constexpr int kMostAttempts = 10;

/// Counts the failed attempts to send one message and decides whether there is another one.
class Resending {
 public:
  /// To be called when an attempt failed with `error`. Calls `again(next)` once the member is known
  /// to live, on a thread that may block: the caller sends the message again and asks `next` if
  /// that fails too. Calls `give_up(why)` if there is to be no further attempt; this may happen
  /// before on_failed() returns.
  using Again = std::function<void(Resending next)>;
  using GiveUp = std::function<void(const Error& why)>;
  void on_failed(AgentCore& agent, int rank, const Error& error, Again again, GiveUp give_up) const;

 private:
  int attempts_ = 0;  // that failed
};

/// Calls F on `rank` until it answers; F may run several times. `limit`: over all attempts; zero:
/// none.
template <auto F, typename... Args>
class RepeatedCall : public std::enable_shared_from_this<RepeatedCall<F, Args...>> {
 public:
  using Result = typename detail::RemoteFunction<F>::Result;

  RepeatedCall(AgentCore& agent, int rank, Timeout limit, Args... args)
      : agent_(agent.weak_from_this()),
        clock_(agent.runtime().clock),
        rank_(rank),
        limit_(limit),
        began_(clock_->now()),
        args_(std::move(args)...) {}

  Future<Result> future() const { return promise_.future(); }

  void send() {
    const auto agent = agent_.lock();
    if (!agent) return fail(Error(ErrorCode::kShuttingDown, "the agent was destroyed"));
    if (settled_.load(std::memory_order_acquire)) return;
    const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
    try {
      std::apply(
          [&](const Args&... args) {
            own_call<F>(*agent, rank_, time_left(), args...)
                .on_ready([self = this->shared_from_this()](const Future<Result>& answer) {
                  self->on_answer(answer);
                });
          },
          args_);
    } catch (const Error& error) {
      fail(error);
    } catch (const std::bad_alloc&) {
      fail(Error(ErrorCode::kLimitExceeded, "there is no memory for the call"));
    }
  }

 private:
  void on_answer(const Future<Result>& answer) {
    const std::optional<Error> error = answer.error();
    const auto agent = agent_.lock();
    if (!error) return succeed(answer);
    if (!agent) return fail(*error);
    expire_in_time(agent->runtime().io);
    resending_.on_failed(
        *agent, rank_, *error,
        [self = this->shared_from_this()](Resending next) {
          self->resending_ = next;
          self->send();
        },
        [self = this->shared_from_this()](const Error& why) { self->fail(why); });
  }

  // The time may be over before it is known whether the member lives.
  void expire_in_time(IoLoop& io) {
    if (limit_.count() <= 0 || expiry_) return;
    expiry_ = Alarm::make(io, [weak = this->weak_from_this()] {
      if (const auto self = weak.lock()) self->expire();
    });
    expiry_->set(base::later(began_, limit_));
  }
  void expire() {
    fail(Error(ErrorCode::kTimeout,
               fmt::format("{}: no answer within {} ms", detail::RemoteFunction<F>::entry().name,
                           limit_ / std::chrono::milliseconds(1))));
  }

  void succeed(const Future<Result>& answer) {
    if (!settle()) return;
    if constexpr (std::is_void_v<Result>) {
      promise_.set_value();
    } else {
      promise_.set_value(detail::FutureAccess::state(answer).value());
    }
  }
  void fail(const Error& error) {
    if (settle()) promise_.set_error(error);
  }
  bool settle() {
    if (settled_.exchange(true, std::memory_order_acq_rel)) return false;
    if (expiry_) expiry_->remove();
    return true;
  }

  Timeout time_left() const {
    if (limit_.count() <= 0) return limit_;
    return std::max<Timeout>(limit_ - (clock_->now() - began_), std::chrono::microseconds(1));
  }

  const std::weak_ptr<AgentCore> agent_;
  const std::shared_ptr<base::Clock> clock_;
  const int rank_;
  const Timeout limit_;
  const base::Time began_;
  const std::tuple<Args...> args_;
  Resending resending_;
  std::shared_ptr<Alarm> expiry_;  // from the first failure on
  std::atomic<bool> settled_{false};
  Promise<Result> promise_;
};

template <auto F, typename... Args>
auto call_until_answered(AgentCore& agent, int rank, Timeout limit, Args... args) {
  const auto call =
      std::make_shared<RepeatedCall<F, Args...>>(agent, rank, limit, std::move(args)...);
  auto future = call->future();
  call->send();
  return future;
}

}  // namespace weft::rpc

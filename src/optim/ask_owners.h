// How a distributed optimizer asks all owners of its parameters at the same time.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "optim/optimizer_driver.h"
#include "rpc/functions/describe_exception.h"

namespace weft::optim {

inline constexpr int kMostSendings = 3;

// Runs `make`, whose complaint is about the user's arguments.
template <typename F>
void check_argument(const std::string& of, const F& make) {
  try {
    make();
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {}", of, rpc::describe_exception(std::current_exception())));
  }
}

/// The time that the calls of one operation have together.
class TimeLimit {
 public:
  /// Nothing: every call has the default timeout. Zero: no limit.
  explicit TimeLimit(std::optional<Timeout> limit) : limit_(limit) {}

  /// For a call that is made now. Never zero unless there is no limit.
  std::optional<Timeout> left() const {
    if (!limit_ || limit_->count() <= 0) return limit_;
    return std::max<Timeout>(*limit_ - (Clock::now() - start_), std::chrono::milliseconds(1));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::optional<Timeout> limit_;
  const Clock::time_point start_ = Clock::now();
};

// Calls of the optimizer's own are no part of a computation.
struct Unrecorded {
  c10::AutoGradMode off{false};
};

/// The answer of an owner, or the reason why there is none.
template <typename R>
struct OwnerAnswer {
  std::optional<R> value;
  std::optional<Error> error;
};

// The connection broke and the owner lives: were it gone, the error would be kRRefLost.
inline bool may_ask_again(const Error& error) {
  return error.code() == ErrorCode::kOutcomeUnknown || error.code() == ErrorCode::kUnavailable;
}

template <typename F>
auto answer_of(const F& f) {
  OwnerAnswer<std::invoke_result_t<F>> answer;
  try {
    answer.value = f();
  } catch (const Error& error) {
    answer.error = error;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    answer.error =
        Error(ErrorCode::kRemoteError, rpc::describe_exception(std::current_exception()));
  }
  return answer;
}

// Whether it is this worker's own, and there. What is not there may never be: only a call's
// deadline ends waiting for it.
inline bool is_here(const RRef<OwnerOptimizer>& optimizer) {
  const auto* object = weft::detail::RRefAccess::handle(optimizer)->object();
  return object && object->is_settled();
}

inline const rpc::Complaint& complaint_in(const rpc::Complaint& reply) { return reply; }
inline const rpc::Complaint& complaint_in(const NormReply& reply) { return reply.complaint; }
inline rpc::Complaint complaint_in(const OwnerOptimizer::State&) { return {}; }

// Method of every owner's part, at the same time, with what `arguments(i)` gives for owner i.
// Everything they are asked for may be asked again: when the connection broke and the owner lives,
// it is. Returns when all have answered or will not.
template <auto Method, typename Arguments>
auto OptimizerDriver::ask_owners(const TimeLimit& time, const Arguments& arguments) const {
  using Remote = weft::detail::RemoteMethod<OwnerOptimizer, Method>;
  using Access = weft::detail::RRefAccess;
  const Unrecorded calls;
  // The caller waits for the answer at once, so the message does not wait for later ones.
  const auto send = [&](size_t i) {
    const RRef<OwnerOptimizer>& owner = owners_[i].optimizer;
    const weft::detail::RRefTarget<OwnerOptimizer> target(Access::handle(owner)->id());
    const auto call = [&](const auto&... args) {
      return Access::call<typename Remote::CallFunction>(owner, CallOptions{time.left()},
                                                         /*waits=*/true, target, args...);
    };
    return std::apply(call, arguments(i));
  };

  std::vector<std::optional<Future<typename Remote::Result>>> pending(owners_.size());
  std::vector<OwnerAnswer<typename Remote::Result>> answers(owners_.size());
  std::vector<bool> here;
  for (size_t i = 0; i < owners_.size(); ++i) {
    here.push_back(is_here(owners_[i].optimizer));
    if (here[i]) continue;
    auto sent = answer_of([&] { return send(i); });
    pending[i] = std::move(sent.value);
    answers[i].error = std::move(sent.error);
  }
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (!here[i]) continue;
    // This worker's own part is done on this thread, meanwhile.
    answers[i] = answer_of([&] {
      OwnerOptimizer& own = owners_[i].optimizer.local_value();
      const auto call = [&own](const auto&... args) { return std::invoke(Method, own, args...); };
      return std::apply(call, arguments(i));
    });
  }
  for (size_t i = 0; i < owners_.size(); ++i) {
    if (here[i]) continue;
    if (pending[i]) answers[i] = answer_of([&] { return pending[i]->wait(); });
    bool may_have_run = false;
    for (int sent = 1; answers[i].error; ++sent) {
      may_have_run |= answers[i].error->may_have_run();
      if (sent == kMostSendings || !may_ask_again(*answers[i].error)) {
        // The message may have run at any of the times it was sent.
        if (may_have_run) answers[i].error = answers[i].error->after_sending();
        break;
      }
      answers[i] = answer_of([&] { return send(i).wait(); });
    }
  }
  return answers;
}

template <auto Method, typename... Args>
auto OptimizerDriver::ask_all(const Args&... args) const {
  return ask_owners<Method>(TimeLimit(std::nullopt), [&](size_t) { return std::tie(args...); });
}

template <typename Answers>
void OptimizerDriver::throw_failures(const char* what, const Answers& answers) const {
  std::optional<ErrorCode> code;
  std::string failures;
  for (size_t i = 0; i < answers.size(); ++i) {
    std::optional<Error> error = answers[i].error;
    const std::string& owner = owners_[i].info.name;
    if (!error) {
      const rpc::Complaint complaint = complaint_in(*answers[i].value);
      if (complaint) error = complaint.error(owner);
    } else {
      error = Error(error->code(), owner + ": " + error->message());
    }
    if (!error) continue;
    if (!code) code = error->code();
    failures += "; " + error->message();
  }
  if (code) throw Error(*code, fmt::format("{} of {} failed{}", what, name_of(kind_), failures));
}

}  // namespace weft::optim

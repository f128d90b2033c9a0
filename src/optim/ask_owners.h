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
#include "rpc/resend.h"

namespace weft::optim {

// Runs `make`. An exception it throws becomes kInvalidArgument: it is about what the program gave.
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
  /// nullopt: every call has the default timeout. Zero: no limit.
  explicit TimeLimit(std::optional<Timeout> limit) : limit_(limit) {}

  /// The timeout for a call that is made now. Never zero unless there is no limit.
  std::optional<Timeout> left() const {
    if (!limit_ || limit_->count() <= 0) return limit_;
    return std::max<Timeout>(*limit_ - (Clock::now() - start_), std::chrono::milliseconds(1));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const std::optional<Timeout> limit_;
  const Clock::time_point start_ = Clock::now();
};

// Autograd does not record the optimizer's own calls.
struct Unrecorded {
  c10::AutoGradMode off{false};
};

/// The value that an owner answered, or the error.
template <typename R>
struct OwnerAnswer {
  std::optional<R> value;
  std::optional<Error> error;
};

// True if the connection broke and the owner lives. (If the owner were gone, the error would be
// kRRefLost.)
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

// Whether the optimizer is on this worker and is made. One that is not made yet is called like that
// of another worker, so that the deadline of the call bounds the wait.
inline bool is_here(const RRef<OwnerOptimizer>& optimizer) {
  const auto* object = weft::detail::RRefAccess::handle(optimizer)->object();
  return object && object->is_settled();
}

inline const rpc::Complaint& complaint_in(const rpc::Complaint& reply) { return reply; }
inline const rpc::Complaint& complaint_in(const NormReply& reply) { return reply.complaint; }
inline rpc::Complaint complaint_in(const OwnerOptimizer::State&) { return {}; }

// Calls Method of every owner's optimizer, at the same time, with arguments(i) for owner i. All
// these methods may be called twice: if the connection broke and the owner lives, the call is sent
// again. Returns when every owner has an answer or an error.
template <auto Method, typename Arguments>
auto OptimizerDriver::ask_owners(const TimeLimit& time, const Arguments& arguments) const {
  using Remote = weft::detail::RemoteMethod<OwnerOptimizer, Method>;
  using Access = weft::detail::RRefAccess;
  const Unrecorded calls;
  // waits=true: this thread waits for the reply at once, so the frame must not wait for others.
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
    // Meanwhile this thread does the part of this worker.
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
      if (sent == rpc::kMostAttempts || !may_ask_again(*answers[i].error)) {
        // The owner may have applied it in any of the attempts.
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

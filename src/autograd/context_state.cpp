// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/context_state.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "autograd/contexts.h"
#include "autograd/pass_calls.h"
#include "autograd/reserved_functions.h"
#include "autograd/without_memory.h"
#include "base/error_without_memory.h"
#include "rpc/own_call.h"

namespace weft::autograd {

namespace {

constexpr auto kReportTimeout = std::chrono::seconds(10);

}  // namespace

ContextState::ContextState(rpc::AgentCore& agent, int64_t id)
    : runtime_(agent.runtime().shared_from_this()),
      id_(id),
      participants_(agent.members().size()),
      orders_(runtime_->clock,
              [this](int rank, const RunOrder& order) { return send_order(rank, order); }),
      runner_(*this) {}

void ContextState::send_gradients(int to, const ReturnedGradients& returned) {
  auto agent = runtime_->agent.lock();
  if (!agent) return;
  autograd::send_gradients(*agent, detail::Ref<ContextState>::share(this), to, returned);
}

Future<RunReport> ContextState::send_order(int rank, const RunOrder& order) {
  auto agent = runtime_->agent.lock();
  if (!agent) throw Error(ErrorCode::kShuttingDown, worker() + " was shut down");
  return send_run_order(*agent, detail::Ref<ContextState>::share(this), rank, order);
}

// --- the end ---------------------------------------------------------------------------------

void ContextState::fail(const std::string& cause) noexcept {
  const std::string what = text_by([&] { return fmt::format("{}: {}", worker(), cause); });
  auto agent = runtime_->agent.lock();
  if (agent && is_led_here()) return Contexts::of(*agent).abort_everywhere(id_, what);
  if (!is_good()) return;
  if (end(Status::kAborted, what) || !agent) return;  // the order's answer tells it
  const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
  try {
    rpc::own_call<sys_autograd_fail>(*agent, creator(), kReportTimeout, id_, what);
  } catch (const Error&) {
    // The creator is gone, or this agent is: both end the context anyway.
  } catch (const std::bad_alloc&) {
    // The creator hears of it when it next asks, orders or calls this worker in the context.
  }
}

void ContextState::abort(const std::string& cause) noexcept { end(Status::kAborted, cause); }
void ContextState::let_go() noexcept {
  end(Status::kReleased, text_by([] { return std::string("the context has ended"); }));
}

bool ContextState::end(Status how, const std::string& cause) noexcept {
  Error why = base::error_without_text(ErrorCode::kContextAborted);
  {
    const base::MutexLock lock(mutex_);
    if (status_ == Status::kGood) cause_ = text_by([&] { return cause; });
    status_ = how == Status::kReleased ? how : std::max(status_, how);
    why = why_not();
  }
  gradients_.close(why);
  orders_.clear();
  return runner_.end(why, cause);
}

void ContextState::free_memory() noexcept {
  std::string cause;
  {
    const base::MutexLock lock(mutex_);
    try {
      cause = cause_;
    } catch (const std::bad_alloc&) {
      cause = kOutOfMemory;
    }
  }
  tape_.take();
  gradients_.take();
  stages_.give_up(cause);
}

Error ContextState::why_not() const noexcept {
  const bool released = status_ == Status::kReleased;
  const ErrorCode code = released ? ErrorCode::kInvalidArgument : ErrorCode::kContextAborted;
  try {
    return Error(code, released ? fmt::format("{}: autograd context {} has ended", worker(), id_)
                                : fmt::format("autograd context {} was given up: {}", id_, cause_));
  } catch (const std::bad_alloc&) {
    return base::error_without_text(code);
  }
}

bool ContextState::is_good() const {
  const base::MutexLock lock(mutex_);
  return status_ == Status::kGood;
}

std::optional<Error> ContextState::aborted() const {
  const base::MutexLock lock(mutex_);
  if (status_ != Status::kAborted) return std::nullopt;
  return why_not();
}

void ContextState::check() const {
  if (auto error = aborted()) throw *error;
}

bool ContextState::check_is_good() const {
  const base::MutexLock lock(mutex_);
  if (status_ == Status::kAborted) throw why_not();
  return status_ == Status::kGood;
}

}  // namespace weft::autograd

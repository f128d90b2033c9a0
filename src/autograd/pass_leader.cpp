// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/pass_leader.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "autograd/pass_calls.h"
#include "autograd/reserved_functions.h"
#include "autograd/without_memory.h"
#include "rpc/own_call.h"

namespace weft::autograd {

namespace {

// While the leader waits for one worker, it looks at the answers of the others so often.
constexpr auto kLookAround = std::chrono::milliseconds(5);

base::Time deadline_of(rpc::AgentCore& agent, const BackwardOptions& options) {
  rpc::Runtime& runtime = agent.runtime();
  const Timeout timeout =
      options.timeout.value_or(Timeout(runtime.default_timeout.load(std::memory_order_relaxed)));
  if (timeout.count() < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a timeout of {} ns for a backward pass", timeout.count()));
  }
  return timeout.count() == 0 ? base::Time::max() : base::later(runtime.clock->now(), timeout);
}

struct Failure {
  std::string cause;
};

// Does not wait: the thread that leads may wait for this thread.
std::unique_lock<std::mutex> take_lead(ContextState& state) {
  std::unique_lock lock(state.leading(), std::try_to_lock);
  if (lock.owns_lock()) return lock;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a pass of autograd context {} is running already", state.id()));
}

bool is_mistake(const PassAnswer& answer) {
  return answer.code == static_cast<uint8_t>(ErrorCode::kInvalidArgument);
}

}  // namespace

PassLeader::PassLeader(rpc::AgentCore& agent, ContextState& state, const BackwardOptions& options)
    : agent_(agent),
      state_(state),
      options_(options),
      self_(agent.runtime().self().info.id),
      only_one_(take_lead(state)),
      pass_{state.id(), state.next_pass()},
      deadline_(deadline_of(agent, options)) {}

void PassLeader::run_from(const std::vector<at::Tensor>& roots) {
  if (roots.empty()) throw Error(ErrorCode::kInvalidArgument, "a backward pass without roots");
  state_.check();
  const PassAnswer here = ask_here(roots);
  state_.check();
  if (is_mistake(here)) throw Error(ErrorCode::kInvalidArgument, here.failure);
  run(self_, here);
}

void PassLeader::run_from(const RRef<at::Tensor>& root) {
  state_.check();
  const int owner = root.owner().id;
  if (owner != self_) state_.participants().add(owner);
  const PassAnswer there = ask_owner(root);
  if (is_mistake(there)) throw Error(ErrorCode::kInvalidArgument, there.failure);
  run(owner, there);
}

// If the root or its owner is gone, the pass fails.
PassAnswer PassLeader::ask_owner(const RRef<at::Tensor>& root) {
  const auto given_up = static_cast<uint8_t>(ErrorCode::kContextAborted);
  try {
    if (root.is_owner()) return ask_here({own_value(root)});
    const detail::RRefTarget<at::Tensor> target(detail::RRefAccess::handle(root)->id());
    return await(
        Future<PassAnswer>(detail::RRefAccess::call<detail::RemoteFunction<&sys_autograd_ask_root>>(
            root, CallOptions{time_left()}, true, target, pass_)));
  } catch (const Failure& failure) {
    return {{}, given_up, failure.cause};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) throw;
    return {{}, given_up, error.message()};
  }
}

PassAnswer PassLeader::ask_here(const std::vector<at::Tensor>& roots) {
  for (const at::Tensor& root : roots) check_root(root);
  return state_.runner().ask_roots(pass_.number, roots).wait();
}

at::Tensor PassLeader::own_value(const RRef<at::Tensor>& root) const {
  detail::await_object(*detail::RRefAccess::handle(root), CallOptions{time_left()});
  return root.local_value();
}

void PassLeader::run(int root_rank, const PassAnswer& roots) {
  progress_.emplace(std::set<int>{root_rank});
  std::string cause;
  try {
    if (roots.code != 0) throw Failure{roots.failure};
    // The leader learns of further workers by asking.
    if (options_.mode == Mode::kSimple && !state_.participants().has_more()) {
      std::set<int> everybody = state_.participants().all();
      everybody.insert(self_);
      carry_out(progress_->begin_with(everybody));
    } else {
      carry_out(progress_->begin({roots.reached}));
      await_answers();
    }
    await_finished();
    return;
  } catch (Failure& failure) {
    cause = std::move(failure.cause);
  } catch (const Error& error) {
    cause = text_by([&error] { return error.message(); });
  } catch (const std::bad_alloc&) {
    cause = text_by([this] { return fmt::format("{}: {}", name(self_), kOutOfMemory); });
  }
  Contexts::of(agent_).abort_everywhere(state_.id(), cause);
  state_.check();
  throw Error(ErrorCode::kContextAborted, cause);
}

void PassLeader::carry_out(const PassProgress::Orders& orders) {
  for (const auto& [rank, messages] : orders.ask) ask(rank, messages);
  if (!orders.run.empty()) order(orders.run);
}

void PassLeader::ask(int rank, const std::vector<uint64_t>& messages) {
  state_.participants().add(rank);
  questions_.emplace_back(rank, rank == self_ ? state_.runner().ask(pass_.number, messages)
                                              : rpc::own_call<sys_autograd_ask>(
                                                    agent_, rank, time_left(), pass_, messages));
}

// The leader's own part runs first: its gradients for other workers go with their orders.
void PassLeader::order(const std::vector<int>& ranks) {
  std::set<int> others(ranks.begin(), ranks.end());
  others.erase(self_);
  // With several workers, gradients of a later report would wait for the earlier reports.
  const bool report = others.size() == 1;
  const RunOrder order{pass_, options_.retain_graph, options_.mode == Mode::kSimple, report, {}};
  state_.orders().begin(order, std::move(others), deadline_);
  const Future<RunReport> own = state_.runner().run(order);
  running_ = state_.orders().send_rest();
  running_.emplace_back(self_, own);
}

void PassLeader::await_answers() {
  while (!questions_.empty()) {
    const auto [rank, future] = questions_.front();
    const PassAnswer answer = await(future);
    questions_.pop_front();
    if (answer.code != 0) throw Failure{answer.failure};
    const auto members = static_cast<int>(agent_.members().size());
    for (const auto& [from, messages] : answer.reached) {
      if (from < 0 || from >= members) throw Failure{name(rank) + " names a worker nobody is"};
    }
    carry_out(progress_->on_answer(answer.reached));
  }
}

void PassLeader::await_finished() {
  while (!running_.empty()) {
    const auto [rank, future] = running_.front();
    take_gradients(rank, await(future));
    running_.erase(running_.begin());
    progress_->on_finished(rank);
  }
}

void PassLeader::take_gradients(int rank, RunReport report) {
  for (ReturnedGradients& each : report.gradients)
    state_.runner().on_gradients(rank, std::move(each));
  state_.participants().on_report(rank, report.has_sparse);
  state_.runner().on_finished(rank);
}

template <typename T>
T PassLeader::await(const Future<T>& future) {
  while (!future.ready()) {
    const base::Duration left = deadline_ - agent_.runtime().clock->now();
    if (left <= base::Duration(0)) run_out_of_time();
    if (future.wait_for(std::min<base::Duration>(left, kLookAround))) break;
    look_for_failure();
  }
  if (const auto error = future.error()) {
    if (error->code() == ErrorCode::kTimeout) run_out_of_time();
    throw Failure{failure_of(*error)};
  }
  return future.wait();
}

// Looks at the answers of workers that the leader does not wait for at the moment.
void PassLeader::look_for_failure() {
  if (const auto error = state_.aborted()) throw *error;
  for (const auto& [rank, future] : questions_) {
    if (!future.ready()) continue;
    if (const auto error = future.error()) throw Failure{failure_of(*error)};
    if (const PassAnswer answer = future.wait(); answer.code != 0) throw Failure{answer.failure};
  }
  for (const auto& [rank, future] : running_) {
    if (!future.ready()) continue;
    if (const auto error = future.error()) throw Failure{failure_of(*error)};
  }
}

Timeout PassLeader::time_left() const {
  if (deadline_ == base::Time::max()) return Timeout(0);
  return std::max<Timeout>(deadline_ - agent_.runtime().clock->now(), std::chrono::microseconds(1));
}

void PassLeader::run_out_of_time() const {
  std::string missing;
  for (const auto& [rank, future] : questions_) missing += " " + name(rank);
  for (const auto& [rank, future] : running_) {
    if (!future.ready()) missing += " " + name(rank);
  }
  throw Failure{fmt::format("the pass took longer than its timeout; unfinished:{}{}", missing,
                            options_.mode == Mode::kSimple
                                ? "; in simple mode every result that was sent must be used"
                                : "")};
}

std::string PassLeader::name(int rank) const {
  return agent_.members()[static_cast<size_t>(rank)].name;
}

}  // namespace weft::autograd

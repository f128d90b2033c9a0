// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/context_state.h"

#include <cxxabi.h>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "autograd/contexts.h"
#include "autograd/pass_calls.h"
#include "autograd/reserved_functions.h"
#include "rpc/functions/describe_exception.h"
#include "rpc/own_call.h"

namespace weft::autograd {

namespace {

constexpr auto kReportTimeout = std::chrono::seconds(10);
// How long the leader's own part may run before those that wait only for their orders get them.
constexpr auto kOrdersWait = std::chrono::microseconds(200);
constexpr auto kAbortedCode = static_cast<uint8_t>(ErrorCode::kContextAborted);

}  // namespace

ContextState::ContextState(rpc::AgentCore& agent, int64_t id)
    : agent_(agent.weak_from_this()),
      agent_address_(&agent),
      members_(static_cast<int>(agent.members().size())),
      id_(id),
      self_(agent.runtime().self().info.id),
      worker_(agent.runtime().name()),
      clock_(agent.runtime().clock) {
  part_ = std::make_unique<LocalPass>(id_, tape_);
}

// --- the pass --------------------------------------------------------------------------------

Future<PassAnswer> ContextState::ask(uint64_t pass, std::vector<uint64_t> messages) {
  return ask({pass, std::move(messages), {}, std::make_shared<Promise<PassAnswer>>()});
}

Future<PassAnswer> ContextState::ask_roots(uint64_t pass, std::vector<at::Tensor> roots) {
  return ask({pass, {}, std::move(roots), std::make_shared<Promise<PassAnswer>>()});
}

Future<PassAnswer> ContextState::ask(Question question) {
  Future<PassAnswer> answer = question.promise->future();
  post(std::move(question));
  return answer;
}

Future<RunReport> ContextState::run(RunOrder order) {
  return run(std::move(order), {}, base::Time::max());
}

Future<RunReport> ContextState::run(RunOrder order, std::set<int> others, base::Time deadline) {
  auto promise = std::make_shared<Promise<RunReport>>();
  Future<RunReport> outcome = promise->future();
  {
    Lock lock(mutex_);
    if (status_ != Status::kGood) throw why_not();
    if (run_) {
      throw Error(ErrorCode::kInvalidArgument,
                  worker_ + ": another pass of this context is running");
    }
    run_ = std::move(promise);
    const bool leads = creator() == self_;
    const bool reports = order.report && !leads;
    dispatch_.begin(order.pass.number, reports ? std::optional(creator()) : std::nullopt);
    if (leads) order_ = order;
    unordered_ = std::move(others);
    ordered_.clear();
    began_ = clock_->now();
    deadline_ = deadline;
  }
  post(std::move(order));
  return outcome;
}

std::vector<std::pair<int, Future<RunReport>>> ContextState::send_orders() {
  const std::lock_guard one_at_a_time(ordering_);
  Lock lock(mutex_);
  const std::set<int> rest = std::exchange(unordered_, {});
  const RunOrder order = order_;
  lock.unlock();
  for (const int rank : rest) send_order(rank, order);
  lock.lock();
  return ordered_;
}

// Under `ordering_`.
void ContextState::send_order(int rank, const RunOrder& order) {
  auto agent = agent_.lock();
  if (!agent) return;
  auto answer = send_run_order(*agent, detail::Ref<ContextState>::share(this), rank, order);
  Lock lock(mutex_);
  ordered_.emplace_back(rank, std::move(answer));
}

void ContextState::on_gradients(int from, ReturnedGradients returned) {
  post(Arrived{from, std::move(returned)});
}

void ContextState::post(Event event) {
  {
    Lock lock(mutex_);
    events_.push_back(std::move(event));
    if (std::exchange(working_, true)) return;
  }
  work_off();
}

// The caller's deadline and end are not those of the pass.
void ContextState::work_off() {
  const auto self = detail::Ref<ContextState>::share(this);
  const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
  const c10::AutoGradMode off(false);
  std::vector<Event> events;
  while (take_events(events)) {
    try {
      for (Event& event : events) handle(event);
      step();
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      fail(rpc::describe_exception(std::current_exception()));
    }
  }
}

// False: there is nothing to do, and this thread works here no more.
bool ContextState::take_events(std::vector<Event>& events) {
  events.clear();
  std::unique_ptr<LocalPass> ended;
  std::map<uint64_t, std::shared_ptr<const Tape::Sent>> taped;
  Leaves leaves;
  std::vector<Event> unanswered;
  Lock lock(mutex_);
  if (status_ == Status::kGood) {
    std::swap(events, events_);
    working_ = !events.empty() || part_->can_step();
    return working_;
  }
  // What is freed here may take a while, and may be a lot.
  unanswered.swap(events_);
  ended.swap(part_);
  part_ = std::make_unique<LocalPass>(id_, tape_);
  taped = tape_.take();
  std::swap(leaves, gradients_);
  Leaves staged = std::exchange(staged_, {});
  working_ = false;
  const Error why = why_not();
  const std::string cause = cause_;
  lock.unlock();
  stages_.give_up(cause);
  for (Event& event : unanswered) {
    if (auto* question = std::get_if<Question>(&event)) {
      question->promise->set_value(PassAnswer{{}, kAbortedCode, why.message()});
    }
  }
  return false;
}

void ContextState::handle(Event& event) {
  std::visit([this](auto& each) { handle(each); }, event);
}

// A question that makes no sense is its asker's mistake, and no reason to give anything up here.
void ContextState::handle(Question& question) {
  PassAnswer answer;
  try {
    answer.reached = question.roots.empty() ? part_->ask(question.pass, question.messages)
                                            : part_->ask_roots(question.pass, question.roots);
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    answer.code = static_cast<uint8_t>(ErrorCode::kInvalidArgument);
    answer.failure =
        fmt::format("{}: {}", worker_, rpc::describe_exception(std::current_exception()));
  }
  question.promise->set_value(std::move(answer));
}

void ContextState::handle(RunOrder& order) {
  stages_.begin_pass();
  part_->run(order);
  for (ReturnedGradients& each : order.gradients) part_->on_gradients(creator(), std::move(each));
}

void ContextState::step() {
  if (part_->can_step()) {
    if (!part_->next_is_quick()) {
      send_held();
      if (creator() == self_) lead_on();
    }
    if (auto outgoing = part_->step()) send(std::move(*outgoing));
    if (const auto leaf = part_->take_leaf()) pass_to_stage(leaf->first, leaf->second);
  }
  if (auto fresh = part_->take_finished()) give_out(std::move(*fresh));
  if (!part_->can_step()) send_held();
}

// The leader's own part takes its time: the others need not wait for it, nor it go on for ever.
void ContextState::lead_on() {
  const base::Time now = clock_->now();
  bool orders = false;
  {
    Lock lock(mutex_);
    if (now >= deadline_) throw Error(ErrorCode::kTimeout, "the pass took longer than its timeout");
    orders = !unordered_.empty() && now - began_ > kOrdersWait;
  }
  if (orders) send_orders();
}

void ContextState::pass_to_stage(const at::Tensor& leaf, const at::Tensor& gradient) {
  const auto stage = stages_.find(leaf);
  if (!stage) return;
  if (!gradient.is_cpu()) part_->finish_device_work();
  at::Tensor sum;
  {
    Lock lock(mutex_);
    sum = gradients_.find(leaf);
  }
  accumulate(sum, gradient);
  stage->on_leaf(leaf, sum);
}

void ContextState::give_out(Leaves fresh) {
  if (stages_.empty()) return publish(std::move(fresh), {});
  staged_ = std::move(fresh);
  const auto earlier = [this](const at::Tensor& leaf) {
    Lock lock(mutex_);
    return gradients_.find(leaf);
  };
  stages_.finish_pass(earlier,
                      [self = detail::Ref<ContextState>::share(this)](LeafStage::Result result) {
                        self->post(Staged{std::move(result)});
                      });
}

void ContextState::handle(Staged& staged) {
  if (staged.result.cause) throw Error(ErrorCode::kContextAborted, *staged.result.cause);
  publish(std::exchange(staged_, {}), std::move(staged.result.gradients));
}

void ContextState::publish(Leaves fresh, LeafStage::Gradients staged) {
  // Others read them meanwhile, so they are added up aside.
  Leaves sum;
  {
    Lock lock(mutex_);
    sum = gradients_;
  }
  sum.add(std::move(fresh));
  for (auto& [leaf, gradient] : staged) sum.put(leaf, std::move(gradient));
  const bool has_sparse = sum.has_sparse();
  {
    Lock lock(mutex_);
    if (status_ != Status::kGood) return;
    std::swap(gradients_, sum);
    has_sparse_ = has_sparse;
    dispatch_.on_ran();
  }
  report_if_done();
}

void ContextState::on_delivered(int to, uint64_t pass) {
  {
    Lock lock(mutex_);
    dispatch_.on_delivered(to, pass);
  }
  report_if_done();
}

void ContextState::on_finished(int rank, const RunReport& report) {
  {
    Lock lock(mutex_);
    dispatch_.on_finished(rank);
    if (report.has_sparse) {
      workers_with_sparse_.insert(rank);
    } else {
      workers_with_sparse_.erase(rank);
    }
  }
  report_if_done();
}

void ContextState::report_if_done() {
  std::shared_ptr<Promise<RunReport>> run;
  std::optional<std::vector<ReturnedGradients>> gradients;
  bool has_sparse = false;
  {
    Lock lock(mutex_);
    if (status_ != Status::kGood) return;
    gradients = dispatch_.take_report();
    if (gradients) run = std::move(run_);
    has_sparse = has_sparse_;
  }
  if (run) run->set_value(RunReport{std::move(*gradients), has_sparse});
}

void ContextState::send(LocalPass::Outgoing outgoing) {
  if (outgoing.to == self_) return post(Arrived{self_, std::move(outgoing.returned)});
  if (send_with_order(outgoing)) return;
  Lock lock(mutex_);
  std::vector<LocalPass::Outgoing> now = dispatch_.send(std::move(outgoing));
  lock.unlock();
  for (LocalPass::Outgoing& each : now) send_now(std::move(each));
}

bool ContextState::send_with_order(LocalPass::Outgoing& outgoing) {
  const std::lock_guard one_at_a_time(ordering_);
  RunOrder order;
  {
    Lock lock(mutex_);
    if (unordered_.erase(outgoing.to) == 0) return false;
    order = order_;
  }
  order.gradients.push_back(std::move(outgoing.returned));
  send_order(outgoing.to, order);
  return true;
}

void ContextState::send_held() {
  std::vector<LocalPass::Outgoing> held;
  {
    Lock lock(mutex_);
    held = dispatch_.send_held();
  }
  for (LocalPass::Outgoing& each : held) send_now(std::move(each));
}

void ContextState::send_now(LocalPass::Outgoing outgoing) {
  auto agent = agent_.lock();
  if (!agent) return;
  send_gradients(*agent, detail::Ref<ContextState>::share(this), outgoing.to, outgoing.returned);
}

// --- the end ---------------------------------------------------------------------------------

void ContextState::fail(const std::string& cause) {
  const std::string what = fmt::format("{}: {}", worker_, cause);
  auto agent = agent_.lock();
  if (agent && creator() == self_) return Contexts::of(*agent).abort_everywhere(id_, what);
  {
    Lock lock(mutex_);
    if (status_ != Status::kGood) return;
  }
  if (end(Status::kAborted, what) || !agent) return;  // the order's answer tells it
  const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
  try {
    rpc::own_call<sys_autograd_fail>(*agent, creator(), kReportTimeout, id_, what);
  } catch (const Error&) {
    // The creator is gone, or this agent is: both end the context anyway.
  }
}

void ContextState::abort(const std::string& cause) { end(Status::kAborted, cause); }
void ContextState::let_go() { end(Status::kReleased, "the context has ended"); }

bool ContextState::end(Status how, const std::string& cause) {
  std::shared_ptr<Promise<RunReport>> run;
  Dispatch ended;
  std::vector<std::pair<int, Future<RunReport>>> ordered;
  bool frees = false;
  {
    Lock lock(mutex_);
    if (status_ == Status::kGood) cause_ = cause;
    status_ = how == Status::kReleased ? how : std::max(status_, how);
    run = std::move(run_);
    std::swap(ended, dispatch_);
    unordered_.clear();
    ordered.swap(ordered_);
    frees = !std::exchange(working_, true);  // else whoever works does
  }
  const bool answers = run != nullptr;
  if (run) run->set_error(Error(ErrorCode::kContextAborted, cause));
  std::vector<Event> none;
  if (frees) take_events(none);
  return answers;
}

// Under the lock.
Error ContextState::why_not() const {
  return status_ == Status::kReleased
             ? Error(ErrorCode::kInvalidArgument,
                     fmt::format("{}: autograd context {} has ended", worker_, id_))
             : Error(ErrorCode::kContextAborted,
                     fmt::format("autograd context {} was given up: {}", id_, cause_));
}

std::optional<Error> ContextState::aborted() const {
  Lock lock(mutex_);
  if (status_ != Status::kAborted) return std::nullopt;
  return why_not();
}

void ContextState::check() const {
  if (auto error = aborted()) throw *error;
}

at::Tensor ContextState::gradient(const at::Tensor& leaf) const {
  Lock lock(mutex_);
  if (status_ != Status::kGood) throw why_not();
  return gradients_.find(leaf);
}

std::vector<std::pair<at::Tensor, at::Tensor>> ContextState::gradients() const {
  Lock lock(mutex_);
  if (status_ != Status::kGood) throw why_not();
  return gradients_.all();
}

std::vector<at::Tensor> ContextState::gradients_of(const std::vector<at::Tensor>& leaves) const {
  Lock lock(mutex_);
  if (status_ != Status::kGood) throw why_not();
  std::vector<at::Tensor> found;
  found.reserve(leaves.size());
  for (const at::Tensor& leaf : leaves) found.push_back(gradients_.find(leaf));
  return found;
}

void ContextState::replace_gradients(const std::vector<at::Tensor>& leaves,
                                     std::vector<at::Tensor> gradients) {
  Lock lock(mutex_);
  if (status_ != Status::kGood) throw why_not();
  for (size_t i = 0; i < leaves.size(); ++i) gradients_.replace(leaves[i], std::move(gradients[i]));
}

std::set<int> ContextState::participants() const {
  Lock lock(mutex_);
  return participants_;
}

std::set<int> ContextState::workers_with_sparse() const {
  Lock lock(mutex_);
  return workers_with_sparse_;
}

void ContextState::note_participant(int rank) {
  Lock lock(mutex_);
  participants_.insert(rank);
}

bool ContextState::has_more_participants() const {
  Lock lock(mutex_);
  return more_participants_;
}

bool ContextState::busy() const {
  Lock lock(mutex_);
  return working_ || run_;
}

size_t ContextState::leaves() const {
  Lock lock(mutex_);
  return gradients_.size();
}

}  // namespace weft::autograd

// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/pass_runner.h"

#include <cxxabi.h>

#include <new>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "autograd/context_state.h"
#include "autograd/without_memory.h"
#include "base/error_without_memory.h"
#include "base/room.h"
#include "rpc/functions/describe_exception.h"

namespace weft::autograd {

namespace {

constexpr auto kAbortedCode = static_cast<uint8_t>(ErrorCode::kContextAborted);

}  // namespace

PassRunner::PassRunner(ContextState& context)
    : context_(context), pass_(std::make_unique<LocalPass>(context.id(), context.tape())) {}

// --- what comes in ---------------------------------------------------------------------------

Future<PassAnswer> PassRunner::ask(uint64_t pass, std::vector<uint64_t> messages) {
  return ask({pass, std::move(messages), {}, std::make_shared<Promise<PassAnswer>>()});
}

Future<PassAnswer> PassRunner::ask_roots(uint64_t pass, std::vector<at::Tensor> roots) {
  return ask({pass, {}, std::move(roots), std::make_shared<Promise<PassAnswer>>()});
}

Future<PassAnswer> PassRunner::ask(Question question) {
  Future<PassAnswer> answer = question.promise->future();
  post(std::move(question));
  return answer;
}

Future<RunReport> PassRunner::run(RunOrder order) {
  auto promise = std::make_shared<Promise<RunReport>>();
  Future<RunReport> outcome = promise->future();
  {
    const base::MutexLock lock(mutex_);
    if (ended_) throw *ended_;
    if (run_) {
      throw Error(ErrorCode::kInvalidArgument,
                  context_.worker() + ": another pass of this context is running");
    }
    base::make_room(events_, events_.size() + 1);
    run_ = std::move(promise);
    const bool reports = order.report && !context_.is_led_here();
    dispatch_.begin(order.pass.number, reports ? std::optional(context_.creator()) : std::nullopt);
    events_.emplace_back(std::in_place_type<RunOrder>, std::move(order));
    if (std::exchange(working_, true)) return outcome;
  }
  work_off();
  return outcome;
}

void PassRunner::on_gradients(int from, ReturnedGradients returned) {
  post(Arrived{from, std::move(returned)});
}

void PassRunner::on_delivered(int to, uint64_t pass) {
  {
    const base::MutexLock lock(mutex_);
    dispatch_.on_delivered(to, pass);
  }
  report_if_done();
}

void PassRunner::on_lost(int to, uint64_t pass, const std::string& cause) noexcept {
  {
    const base::MutexLock lock(mutex_);
    if (!dispatch_.on_lost(to, pass)) return;
  }
  context_.fail(cause);
}

void PassRunner::on_finished(int rank) {
  {
    const base::MutexLock lock(mutex_);
    dispatch_.on_finished(rank);
  }
  report_if_done();
}

void PassRunner::post(Event event) {
  {
    const base::MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    if (std::exchange(working_, true)) return;
  }
  work_off();
}

// --- the thread that works -------------------------------------------------------------------

// The caller's deadline and end are not those of the pass.
void PassRunner::work_off() {
  const auto alive = detail::Ref<ContextState>::share(&context_);
  const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
  const c10::AutoGradMode off(false);
  std::vector<Event> events;
  while (take_events(events)) {
    try {
      for (Event& event : events) std::visit([this](auto& each) { handle(each); }, event);
      step();
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      fail();
      refuse(events);
    }
  }
}

void PassRunner::fail() noexcept {
  context_.fail(text_by([] { return rpc::describe_exception(std::current_exception()); }));
}

// False: there is nothing to do, and this thread works here no more.
bool PassRunner::take_events(std::vector<Event>& events) noexcept {
  events.clear();
  // The memory of a context that has ended. Freeing it may take a while, so the lock is released
  // first.
  std::unique_ptr<LocalPass> ended;
  Leaves staged;
  std::vector<Event> unanswered;
  base::MutexLock lock(mutex_);
  if (!ended_) {
    std::swap(events, events_);
    working_ = !events.empty() || pass_->can_step();
    return working_;
  }
  unanswered.swap(events_);
  ended.swap(pass_);
  std::swap(staged, staged_);
  working_ = false;
  lock.unlock();
  context_.free_memory();
  refuse(unanswered);
  return false;
}

// Answers the questions among `events` that have no answer yet.
void PassRunner::refuse(std::vector<Event>& events) noexcept {
  Error why = base::error_without_text(ErrorCode::kContextAborted);
  {
    const base::MutexLock lock(mutex_);
    if (ended_) why = *ended_;
  }
  for (Event& event : events) {
    auto* question = std::get_if<Question>(&event);
    if (!question || !question->promise) continue;
    std::exchange(question->promise, nullptr)
        ->set_value(PassAnswer{{}, kAbortedCode, text_by([&why] { return why.message(); })});
  }
}

// A question that makes no sense is its asker's mistake, and no reason to give anything up here.
void PassRunner::handle(Question& question) {
  PassAnswer answer;
  try {
    answer.reached = question.roots.empty()
                         ? pass_->reached_by(question.pass, question.messages)
                         : pass_->reached_by_roots(question.pass, question.roots);
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    answer.code = kAbortedCode;
    answer.failure =
        text_by([this] { return fmt::format("{}: {}", context_.worker(), kOutOfMemory); });
  } catch (...) {
    answer.code = static_cast<uint8_t>(ErrorCode::kInvalidArgument);
    answer.failure = text_by([this] {
      return fmt::format("{}: {}", context_.worker(),
                         rpc::describe_exception(std::current_exception()));
    });
  }
  std::exchange(question.promise, nullptr)->set_value(std::move(answer));
}

void PassRunner::handle(RunOrder& order) {
  context_.stages().begin_pass();
  pass_->run(order);
  for (ReturnedGradients& each : order.gradients) {
    pass_->on_gradients(context_.creator(), std::move(each));
  }
}

void PassRunner::handle(Arrived& arrived) {
  pass_->on_gradients(arrived.from, std::move(arrived.returned));
}

void PassRunner::handle(Staged& staged) {
  if (staged.result.cause) throw Error(ErrorCode::kContextAborted, *staged.result.cause);
  publish(std::exchange(staged_, {}), std::move(staged.result.gradients));
}

void PassRunner::step() {
  if (pass_->can_step()) {
    if (!pass_->next_is_quick()) {
      send_held();
      if (context_.is_led_here()) context_.orders().look_at_time();
    }
    if (auto outgoing = pass_->step()) send(std::move(*outgoing));
    if (const auto leaf = pass_->take_leaf()) pass_to_stage(leaf->first, leaf->second);
  }
  if (auto fresh = pass_->take_finished()) give_out(std::move(*fresh));
  if (!pass_->can_step()) send_held();
}

void PassRunner::pass_to_stage(const at::Tensor& leaf, const at::Tensor& gradient) {
  const auto stage = context_.stages().find(leaf);
  if (!stage) return;
  if (!gradient.is_cpu()) pass_->finish_device_work();
  at::Tensor sum = context_.gradients().peek(leaf);
  accumulate(sum, gradient);
  stage->on_leaf(leaf, sum);
}

void PassRunner::give_out(Leaves fresh) {
  if (context_.stages().empty()) return publish(std::move(fresh), {});
  staged_ = std::move(fresh);
  const auto earlier = [this](const at::Tensor& leaf) { return context_.gradients().peek(leaf); };
  const auto alive = detail::Ref<ContextState>::share(&context_);
  context_.stages().finish_pass(earlier, [alive](LeafStage::Result result) {
    try {
      alive->runner().post(Staged{std::move(result)});
    } catch (const std::bad_alloc&) {
      alive->fail(kOutOfMemory);  // who gives the result does not wait for the pass
    }
  });
}

void PassRunner::publish(Leaves fresh, LeafStage::Gradients staged) {
  context_.gradients().add(std::move(fresh), std::move(staged));
  {
    const base::MutexLock lock(mutex_);
    if (ended_) return;
    dispatch_.on_ran();
  }
  report_if_done();
}

// --- what goes out ---------------------------------------------------------------------------

void PassRunner::send(LocalPass::Outgoing outgoing) {
  if (outgoing.to == context_.self()) {
    return post(Arrived{outgoing.to, std::move(outgoing.returned)});
  }
  if (context_.orders().send_with(outgoing.to, outgoing.returned)) return;
  std::vector<LocalPass::Outgoing> now;
  {
    const base::MutexLock lock(mutex_);
    now = dispatch_.send(std::move(outgoing));
  }
  for (const LocalPass::Outgoing& each : now) context_.send_gradients(each.to, each.returned);
}

void PassRunner::send_held() {
  std::vector<LocalPass::Outgoing> held;
  {
    const base::MutexLock lock(mutex_);
    held = dispatch_.send_held();
  }
  for (const LocalPass::Outgoing& each : held) context_.send_gradients(each.to, each.returned);
}

void PassRunner::report_if_done() noexcept {
  std::shared_ptr<Promise<RunReport>> run;
  std::optional<std::vector<ReturnedGradients>> gradients;
  {
    const base::MutexLock lock(mutex_);
    if (ended_) return;
    gradients = dispatch_.take_report();
    if (gradients) run = std::move(run_);
  }
  if (run) run->set_value(RunReport{std::move(*gradients), context_.gradients().has_sparse()});
}

// --- the end ---------------------------------------------------------------------------------

bool PassRunner::end(const Error& why, const std::string& cause) noexcept {
  std::shared_ptr<Promise<RunReport>> run;
  Dispatch ended;
  bool frees = false;
  {
    const base::MutexLock lock(mutex_);
    ended_ = why;
    run = std::move(run_);
    std::swap(ended, dispatch_);
    frees = !std::exchange(working_, true);  // else the thread that works does
  }
  const bool answers = run != nullptr;
  if (run) {
    Error answer = why;
    try {
      answer = Error(ErrorCode::kContextAborted, cause);
    } catch (const std::bad_alloc&) {
      // The answer is `why`.
    }
    run->set_error(answer);
  }
  std::vector<Event> none;
  if (frees) take_events(none);
  return answers;
}

bool PassRunner::busy() const {
  const base::MutexLock lock(mutex_);
  return working_ || run_;
}

}  // namespace weft::autograd

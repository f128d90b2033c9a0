// SPDX-License-Identifier: BSD-3-Clause
#include "optim/optimizer_driver.h"

#include <cxxabi.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <tuple>
#include <type_traits>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "autograd/contexts.h"
#include "optim/add_norm.h"
#include "rpc/describe_exception.h"

namespace weft::optim {

namespace {

using Applied = OwnerOutcome::Applied;

constexpr int kMostSendings = 3;
constexpr double kNormMargin = 1e-6;  // as PyTorch has it, for norms near zero

// What schedulers of libtorch's change the learning rates of.
class OptionsOnly final : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;
  at::Tensor step(LossClosure) override {
    throw Error(ErrorCode::kInvalidArgument,
                "this optimizer has options and no parameters: call step(context) of the "
                "distributed optimizer it belongs to");
  }
};

std::unique_ptr<torch::optim::Optimizer> make_options(
    const std::vector<OptimizerDriver::Group>& groups,
    const torch::optim::OptimizerOptions& defaults) {
  std::vector<torch::optim::OptimizerParamGroup> all;
  for (const auto& group : groups)
    all.emplace_back(std::vector<at::Tensor>(), group.options->clone());
  return std::make_unique<OptionsOnly>(std::move(all), defaults.clone());
}

// Runs `make`, whose complaint is about what the user gave us.
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

const char* word(Applied applied) {
  switch (applied) {
    case Applied::kYes:
      return "applied";
    case Applied::kNo:
      return "not applied";
    case Applied::kPartly:
      return "partly applied";
    case Applied::kUnknown:
      break;
  }
  return "unknown whether applied";
}

// Calls of the optimizer's own are no part of a computation.
struct Unrecorded {
  c10::AutoGradMode off{false};
};

}  // namespace

// --- asking all owners -------------------------------------------------------------------------

namespace {

/// What an owner answered, or why it did not.
template <typename R>
struct Answer {
  std::optional<R> value;
  std::optional<Error> error;
};

// The connection broke: whether the owner lives shows when it is asked again.
bool may_ask_again(const Error& error) {
  return error.code() == ErrorCode::kOutcomeUnknown ||
         (error.code() == ErrorCode::kRRefLost && !error.may_have_run());
}

template <typename F>
auto answer_of(const F& f) {
  Answer<std::invoke_result_t<F>> answer;
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
bool is_here(const RRef<OwnerOptimizer>& optimizer) {
  const auto* object = weft::detail::RRefAccess::handle(optimizer)->object();
  return object && object->is_settled();
}

const rpc::Complaint& complaint_in(const rpc::Complaint& reply) { return reply; }
const rpc::Complaint& complaint_in(const NormReply& reply) { return reply.complaint; }
rpc::Complaint complaint_in(const OwnerOptimizer::State&) { return {}; }

}  // namespace

// Method of every owner's part, at the same time, with what `arguments(i)` gives for owner i.
// Everything they are asked for may be asked again: when the connection broke and the owner lives,
// it is. Returns when all have answered or will not.
template <auto Method, typename Arguments>
auto OptimizerDriver::ask_owners(std::optional<Timeout> timeout, const Arguments& arguments) const {
  using Clock = std::chrono::steady_clock;
  using Remote = weft::detail::RemoteMethod<OwnerOptimizer, Method>;
  using Access = weft::detail::RRefAccess;
  const Unrecorded calls;
  const auto start = Clock::now();
  // To somebody who waits for it at once: not to be sent together with what may come later.
  const auto send = [&](size_t i) {
    std::optional<Timeout> left = timeout;
    if (timeout && timeout->count() > 0) {
      left = std::max<Timeout>(*timeout - (Clock::now() - start), std::chrono::milliseconds(1));
    }
    const RRef<OwnerOptimizer>& owner = owners_[i].optimizer;
    const weft::detail::RRefTarget<OwnerOptimizer> target(Access::handle(owner)->id());
    const auto call = [&](const auto&... args) {
      return Access::call<Remote::kCall>(owner, left, /*waits=*/true, target, args...);
    };
    return std::apply(call, arguments(i));
  };

  std::vector<std::optional<Future<typename Remote::Result>>> pending(owners_.size());
  std::vector<Answer<typename Remote::Result>> answers(owners_.size());
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
        // Of any of the times it was sent.
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
  return ask_owners<Method>(std::nullopt, [&](size_t) { return std::tie(args...); });
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

// --- making it ---------------------------------------------------------------------------------

OptimizerDriver::OptimizerDriver(Agent& agent, const OptimizerKind& kind, std::vector<Group> groups,
                                 const torch::optim::OptimizerOptions& defaults)
    : agent_(weft::detail::AgentAccess::core(agent)),
      kind_(kind),
      options_(make_options(groups, defaults)) {
  check_argument(name_of(kind), [&] { kind.make({}, defaults); });
  for (const Group& group : groups) {
    check_argument(name_of(kind), [&] { kind.make({}, *group.options); });
  }
  make_optimizers(agent, plan(groups, defaults));
}

std::vector<OwnerPlan> OptimizerDriver::plan(const std::vector<Group>& groups,
                                             const torch::optim::OptimizerOptions& defaults) {
  std::vector<OwnerPlan> plans;
  for (size_t i = 0; i < groups.size(); ++i) {
    group_sizes_.push_back(groups[i].parameters.size());
    for (size_t j = 0; j < groups[i].parameters.size(); ++j) {
      const RRef<at::Tensor>& parameter = groups[i].parameters[j];
      Owner& owner = owner_of(parameter, plans, groups.size());
      owner.places[i].push_back({i, j});
      plans[static_cast<size_t>(&owner - owners_.data())].groups[i].parameters.push_back(parameter);
    }
  }
  if (owners_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, name_of(kind_) + " was given no parameters");
  }
  const std::vector<Record> options = write_options();
  for (OwnerPlan& plan : plans) {
    plan.kind = name_of(kind_);
    plan.defaults = kind_.write(defaults);
    for (size_t i = 0; i < options.size(); ++i) plan.groups[i].options = options[i];
  }
  return plans;
}

OptimizerDriver::Owner& OptimizerDriver::owner_of(const RRef<at::Tensor>& parameter,
                                                  std::vector<OwnerPlan>& plans, size_t groups) {
  if (!parameter) throw Error(ErrorCode::kInvalidArgument, "a parameter is an empty RRef");
  for (Owner& each : owners_) {
    if (each.info == parameter.owner()) return each;
  }
  plans.emplace_back().groups.resize(groups);
  Owner& owner = owners_.emplace_back();
  owner.info = parameter.owner();
  owner.places.resize(groups);
  return owner;
}

void OptimizerDriver::make_optimizers(Agent& agent, std::vector<OwnerPlan> plans) {
  const Unrecorded calls;
  for (size_t i = 0; i < owners_.size(); ++i) {
    owners_[i].optimizer = remote<OwnerOptimizer>(agent, owners_[i].info, std::move(plans[i]));
  }
  throw_failures("construction", ask_all<&OwnerOptimizer::complaint>());
}

// --- a step ------------------------------------------------------------------------------------

void OptimizerDriver::check_context(int64_t context) const {
  if (agent_->stopped()) {
    throw Error(ErrorCode::kShuttingDown, agent_->runtime().name() + " has stopped");
  }
  const auto state = autograd::Contexts::of(*agent_).get(context);
  state->check();
  if (state->creator() == agent_->runtime().self().info.id && !state->has_had_a_pass()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there was no backward() in autograd context {}", context));
  }
}

// Before anything is sent: an owner would find it out in the middle.
void OptimizerDriver::check_options() const {
  for (const auto& group : options_->param_groups()) {
    check_argument(name_of(kind_), [&] { kind_.make({}, group.options()); });
  }
}

uint64_t OptimizerDriver::number_for(int64_t context) {
  if (unfinished_ == context) return number_;  // the same step
  if (given_up_.contains(context)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the step of autograd context {} failed and another one came after it; "
                            "it cannot be completed any more",
                            context));
  }
  if (unfinished_) given_up_.insert(*unfinished_);
  unfinished_ = context;
  return ++number_;
}

namespace {

OwnerOutcome outcome_of(const WorkerInfo& owner, const Answer<StepResult>& answer) {
  if (answer.value) {
    const StepResult& result = *answer.value;
    const bool failed = static_cast<bool>(result.complaint);
    return {owner, result.applied, result.parameters, result.complaint.text,
            failed ? static_cast<ErrorCode>(result.complaint.code) : ErrorCode::kRemoteError};
  }
  return {owner, answer.error->may_have_run() ? Applied::kUnknown : Applied::kNo, 0,
          answer.error->message(), answer.error->code()};
}

std::optional<Error> failure_of(const std::string& step,
                                const std::vector<OwnerOutcome>& outcomes) {
  std::string applied, failures;
  std::optional<ErrorCode> code;
  bool changed = false;
  for (const OwnerOutcome& each : outcomes) {
    changed |= each.applied != Applied::kNo;
    if (each.failure.empty()) {
      applied += (applied.empty() ? "" : ", ") + each.owner.name;
      continue;
    }
    failures += fmt::format("; {} ({}): {}", each.owner.name, word(each.applied), each.failure);
    if (!code) code = each.code;
  }
  if (!code) return std::nullopt;
  const Error error(*code, fmt::format("{} failed; applied by {}{}", step,
                                       applied.empty() ? "nobody" : applied, failures));
  return changed ? error.after_sending() : error.before_sending();
}

}  // namespace

void OptimizerDriver::step(int64_t context, std::optional<Timeout> timeout) {
  check_context(context);
  std::lock_guard one_at_a_time(stepping_);
  check_options();
  std::vector<Record> options = write_options();
  // What is known of this step, if it is not the first attempt.
  const std::vector<OwnerOutcome> before =
      unfinished_ == context ? last_step() : std::vector<OwnerOutcome>();
  const StepOrder order{number_for(context), context, std::move(options)};
  const auto answers =
      ask_owners<&OwnerOptimizer::step>(timeout, [&](size_t) { return std::tie(order); });
  std::vector<OwnerOutcome> outcomes;
  for (size_t i = 0; i < owners_.size(); ++i) {
    outcomes.push_back(outcome_of(owners_[i].info, answers[i]));
    if (answers[i].error && outcomes[i].applied == Applied::kNo && i < before.size()) {
      outcomes[i].applied = before[i].applied;  // not now, but perhaps then
    }
  }
  const auto failure =
      failure_of(fmt::format("step {} of {}", order.number, name_of(kind_)), outcomes);
  {
    std::lock_guard lock(mutex_);
    outcomes_ = std::move(outcomes);
  }
  if (failure) throw *failure;
  unfinished_.reset();
}

std::vector<OwnerOutcome> OptimizerDriver::last_step() const {
  std::lock_guard lock(mutex_);
  return outcomes_;
}

// --- clipping ----------------------------------------------------------------------------------

double OptimizerDriver::clip_grad_norm(int64_t context, double max_norm, double norm_type) {
  if (!(max_norm >= 0) || !(norm_type > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("gradients cannot be clipped to the {}-norm {}", norm_type, max_norm));
  }
  check_context(context);
  std::lock_guard one_at_a_time(stepping_);
  const auto answers = ask_all<&OwnerOptimizer::gradient_norm>(context, norm_type);
  throw_failures("clip_grad_norm", answers);
  double norm = 0;
  for (const auto& answer : answers) add_norm(norm, answer.value->norm, norm_type);
  if (!std::isinf(norm_type)) norm = std::pow(norm, 1 / norm_type);
  const double factor = max_norm / (norm + kNormMargin);
  if (std::isfinite(norm) && factor < 1) {
    const ScaleOrder order{++scalings_, context, factor};
    throw_failures("clip_grad_norm", ask_all<&OwnerOptimizer::scale_gradients>(order));
  }
  return norm;
}

// --- options and state -------------------------------------------------------------------------

std::vector<Record> OptimizerDriver::write_options() const {
  const auto& groups = options_->param_groups();
  if (groups.size() != group_sizes_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} was made with {} parameter groups and now has {}", name_of(kind_),
                            group_sizes_.size(), groups.size()));
  }
  std::vector<Record> options;
  for (const auto& group : groups) options.push_back(kind_.write(group.options()));
  return options;
}

std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> OptimizerDriver::read_options(
    const std::vector<Record>& options) const {
  if (options.size() != group_sizes_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("options of {} groups for the {} of {}", options.size(),
                            group_sizes_.size(), name_of(kind_)));
  }
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> read;
  for (const Record& each : options) {
    read.push_back(kind_.read_options(each));
    check_argument(name_of(kind_), [&] { kind_.make({}, *read.back()); });
  }
  return read;
}

void OptimizerDriver::on_loaded(const std::vector<Record>& options) {
  std::lock_guard one_at_a_time(stepping_);
  take_loaded(options);
}

void OptimizerDriver::take_loaded(const std::vector<Record>& options) {
  auto read = read_options(options);
  auto& groups = options_->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) groups.at(i).set_options(std::move(read[i]));
  unfinished_.reset();
}

OptimizerState OptimizerDriver::state() const {
  std::lock_guard one_at_a_time(stepping_);
  auto answers = ask_all<&OwnerOptimizer::state>();
  throw_failures("state", answers);
  std::vector<OwnerOptimizer::State> parts;
  for (auto& answer : answers) parts.push_back(std::move(*answer.value));
  return spread(parts);
}

OptimizerState OptimizerDriver::spread(const std::vector<OwnerOptimizer::State>& parts) const {
  OptimizerState whole{name_of(kind_), {}};
  const std::vector<Record> options = write_options();
  for (size_t i = 0; i < group_sizes_.size(); ++i) {
    whole.groups.push_back({options[i], {}});
    whole.groups[i].parameters.resize(group_sizes_[i]);
  }
  for (size_t o = 0; o < owners_.size(); ++o) {
    for (size_t i = 0; i < group_sizes_.size(); ++i) {
      for (size_t j = 0; j < owners_[o].places[i].size(); ++j) {
        whole.groups[i].parameters[owners_[o].places[i][j].index] = parts[o].at(i).at(j);
      }
    }
  }
  return whole;
}

std::vector<OwnerOptimizer::State> OptimizerDriver::gather(const OptimizerState& state) const {
  if (state.kind != name_of(kind_)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the state of {} given to {}", state.kind, name_of(kind_)));
  }
  if (state.groups.size() != group_sizes_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("state of {} groups given to an optimizer of {}", state.groups.size(),
                            group_sizes_.size()));
  }
  for (size_t i = 0; i < group_sizes_.size(); ++i) {
    if (state.groups[i].parameters.size() == group_sizes_[i]) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("state of {} parameters for the {} of group {}",
                            state.groups[i].parameters.size(), group_sizes_[i], i));
  }
  std::vector<OwnerOptimizer::State> parts;
  for (const Owner& owner : owners_) {
    OwnerOptimizer::State& part = parts.emplace_back();
    for (size_t i = 0; i < group_sizes_.size(); ++i) {
      part.emplace_back();
      for (const Owner::Place& place : owner.places[i]) {
        part.back().push_back(state.groups[i].parameters[place.index]);
      }
    }
  }
  return parts;
}

void OptimizerDriver::load_state(const OptimizerState& state) {
  const std::vector<OwnerOptimizer::State> parts = gather(state);
  std::vector<Record> options;
  for (const auto& group : state.groups) options.push_back(group.options);
  (void)read_options(options);
  std::lock_guard one_at_a_time(stepping_);
  // Everybody is asked before anybody changes anything.
  throw_failures("load_state",
                 ask_owners<&OwnerOptimizer::check_state>(std::nullopt, [&](size_t i) {
                   return std::make_tuple(OwnerOptimizer::outlined(parts[i]));
                 }));
  throw_failures("load_state", ask_owners<&OwnerOptimizer::load_state>(
                                   std::nullopt, [&](size_t i) { return std::tie(parts[i]); }));
  take_loaded(options);
}

}  // namespace weft::optim

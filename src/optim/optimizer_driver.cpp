// SPDX-License-Identifier: BSD-3-Clause
#include "optim/optimizer_driver.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "autograd/contexts.h"
#include "optim/add_norm.h"
#include "optim/ask_owners.h"

namespace weft::optim {

namespace {

using Applied = OwnerOutcome::Applied;

constexpr double kNormMargin = 1e-6;  // the same as in PyTorch, for norms near zero

// The optimizer that schedulers of libtorch are given: they change the learning rates in it.
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

}  // namespace

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
  if (state->is_led_here() && !state->has_had_a_pass()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there was no backward() in autograd context {}", context));
  }
}

// Checks the options before anything is sent. Otherwise an owner would find the mistake in the
// middle of a step.
void OptimizerDriver::check_options() const {
  for (const auto& group : options_->param_groups()) {
    check_argument(name_of(kind_), [&] { kind_.make({}, group.options()); });
  }
}

uint64_t OptimizerDriver::number_for(int64_t context) const {
  if (unfinished_ && unfinished_->context == context) return number_;  // the same step
  if (given_up_.contains(context)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the step of autograd context {} failed and another one came after it; "
                            "it cannot be completed any more",
                            context));
  }
  return number_ + 1;
}

namespace {

// An outcome whose failure has no text counts as none.
void set_failure(OwnerOutcome& outcome, ErrorCode code, const std::string& text) {
  outcome.failure = text.empty() ? fmt::format("{} without a text", name(code)) : text;
  outcome.code = code;
}
void set_failure(OwnerOutcome& outcome, const rpc::Complaint& complaint) {
  if (complaint) set_failure(outcome, static_cast<ErrorCode>(complaint.code), complaint.text);
}
void set_failure(OwnerOutcome& outcome, const Error& error) {
  set_failure(outcome, error.code(), error.message());
}

OwnerOutcome outcome_of(const WorkerInfo& owner, const OwnerAnswer<StepResult>& answer) {
  OwnerOutcome outcome{owner};
  if (answer.value) {
    outcome.applied = answer.value->applied;
    outcome.parameters = answer.value->parameters;
    set_failure(outcome, answer.value->complaint);
  } else {
    outcome.applied = answer.error->may_have_run() ? Applied::kUnknown : Applied::kNo;
    set_failure(outcome, *answer.error);
  }
  return outcome;
}

std::optional<Error> failure_of(const std::string& step,
                                const std::vector<OwnerOutcome>& outcomes) {
  std::string applied, failures;
  std::optional<ErrorCode> code;
  bool changed = false;
  for (const OwnerOutcome& each : outcomes) {
    changed |= each.applied != Applied::kNo;
    if (each.failure.empty()) {
      if (each.applied == Applied::kYes) applied += (applied.empty() ? "" : ", ") + each.owner.name;
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
  const base::MutexLock one_at_a_time(stepping_);
  check_options();
  const TimeLimit time(timeout);
  const StepOrder order{number_for(context), context, write_options()};
  if (may_be_refused(context)) ask_first(order, time);
  begin(order);
  const auto answers =
      ask_owners<&OwnerOptimizer::step>(time, [&](size_t) { return std::tie(order); });
  std::vector<OwnerOutcome> outcomes;
  for (size_t i = 0; i < owners_.size(); ++i) {
    outcomes.push_back(outcome_of(owners_[i].info, answers[i]));
    if (answers[i].error && outcomes[i].applied == Applied::kNo) {
      outcomes[i].applied = outcomes_before(context)[i].applied;  // an earlier attempt may have
    }
  }
  if (const auto failure = note(order, std::move(outcomes))) {
    unfinished_->outcomes = last_step();
    throw *failure;
  }
  unfinished_.reset();
}

// The worker that made the context was told by every backward pass which workers have sparse
// gradients; other workers do not know. Options that take sparse gradients need not be asked about.
bool OptimizerDriver::may_be_refused(int64_t context) const {
  const auto& groups = options_->param_groups();
  const bool takes_all = std::all_of(groups.begin(), groups.end(), [this](const auto& group) {
    return kind_.takes_sparse(group.options());
  });
  if (takes_all) return false;
  const auto state = autograd::Contexts::of(*agent_).get(context);
  if (!state->is_led_here()) return true;
  const std::set<int> sparse = state->participants().with_sparse();
  return std::any_of(owners_.begin(), owners_.end(),
                     [&sparse](const Owner& each) { return sparse.contains(each.info.id); });
}

// Throws if an owner refuses the step: then no owner is told to apply it.
void OptimizerDriver::ask_first(const StepOrder& order, const TimeLimit& time) {
  const auto answers =
      ask_owners<&OwnerOptimizer::check_step>(time, [&](size_t) { return std::tie(order); });
  std::vector<OwnerOutcome> outcomes = outcomes_before(order.context);
  for (size_t i = 0; i < owners_.size(); ++i) {
    const auto& [complaint, error] = answers[i];
    outcomes[i].failure.clear();  // that of an earlier attempt
    if (error) {
      set_failure(outcomes[i], *error);
    } else {
      set_failure(outcomes[i], *complaint);
    }
  }
  if (const auto failure = note(order, std::move(outcomes))) throw *failure;
}

// The outcomes of earlier attempts at the step of `context`, by owner.
std::vector<OwnerOutcome> OptimizerDriver::outcomes_before(int64_t context) const {
  if (unfinished_ && unfinished_->context == context && !unfinished_->outcomes.empty()) {
    return unfinished_->outcomes;
  }
  std::vector<OwnerOutcome> none;
  for (const Owner& each : owners_) none.push_back({each.info, Applied::kNo});
  return none;
}

// From here on owners may apply the step. An unfinished step before it cannot be completed then.
void OptimizerDriver::begin(const StepOrder& order) {
  if (unfinished_ && unfinished_->context == order.context) return;  // the same step
  if (unfinished_) given_up_.insert(unfinished_->context);
  unfinished_ = Unfinished{order.context, {}};
  number_ = order.number;
}

// Keeps the outcomes for last_step(). Returns the error if an owner failed.
std::optional<Error> OptimizerDriver::note(const StepOrder& order,
                                           std::vector<OwnerOutcome> outcomes) {
  auto failure = failure_of(fmt::format("step {} of {}", order.number, name_of(kind_)), outcomes);
  const base::MutexLock lock(mutex_);
  outcomes_ = std::move(outcomes);
  return failure;
}

std::vector<OwnerOutcome> OptimizerDriver::last_step() const {
  const base::MutexLock lock(mutex_);
  return outcomes_;
}

// --- clipping ----------------------------------------------------------------------------------

double OptimizerDriver::clip_grad_norm(int64_t context, double max_norm, double norm_type) {
  if (!(max_norm >= 0) || !(norm_type > 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("gradients cannot be clipped to the {}-norm {}", norm_type, max_norm));
  }
  check_context(context);
  const base::MutexLock one_at_a_time(stepping_);
  if (unfinished_scaling_ && unfinished_scaling_->context == context) scale(*unfinished_scaling_);
  const auto answers = ask_all<&OwnerOptimizer::gradient_norm>(context, norm_type);
  throw_failures("clip_grad_norm", answers);
  double norm = 0;
  for (const auto& answer : answers) add_norm(norm, answer.value->norm, norm_type);
  if (!std::isinf(norm_type)) norm = std::pow(norm, 1 / norm_type);
  const double factor = max_norm / (norm + kNormMargin);
  if (std::isfinite(norm) && factor < 1) scale({++scalings_, context, factor});
  return norm;
}

// An owner that has carried out this order does nothing.
void OptimizerDriver::scale(ScaleOrder order) {
  unfinished_scaling_ = order;
  throw_failures("clip_grad_norm", ask_all<&OwnerOptimizer::scale_gradients>(order));
  unfinished_scaling_.reset();
}

}  // namespace weft::optim

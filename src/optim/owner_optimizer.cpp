// SPDX-License-Identifier: BSD-3-Clause
#include "optim/owner_optimizer.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "autograd/contexts.h"
#include "optim/add_norm.h"
#include "optim/param_state.h"
#include "optim/stepping.h"
#include "rpc/functions/describe_exception.h"
#include "weft/current_call.h"

namespace weft::optim {

namespace {

using Applied = OwnerOutcome::Applied;

// Puts the gradients into `.grad`, where the optimizers of libtorch read them, and later puts back
// what the program had there.
class LentGradients {
 public:
  LentGradients(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients)
      : LentGradients(parameters) {
    // If a parameter cannot take its gradient, the destructor puts back what was lent before.
    for (size_t i = 0; i < parameters.size(); ++i) {
      own_.push_back(std::exchange(parameters[i].mutable_grad(), gradients[i]));
    }
  }
  ~LentGradients() {
    for (size_t i = 0; i < own_.size(); ++i) parameters_[i].mutable_grad() = std::move(own_[i]);
  }
  LentGradients(const LentGradients&) = delete;
  LentGradients& operator=(const LentGradients&) = delete;

 private:
  explicit LentGradients(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {
    own_.reserve(parameters.size());
  }

  const std::vector<at::Tensor>& parameters_;
  std::vector<at::Tensor> own_;
};

size_t count_defined(const std::vector<at::Tensor>& tensors) {
  size_t count = 0;
  for (const at::Tensor& each : tensors) count += each.defined() ? 1 : 0;
  return count;
}

// The record without its undefined tensors.
Record compact(Record record) {
  std::erase_if(record, [](const auto& field) {
    const auto* tensor = std::get_if<at::Tensor>(&field.second);
    return tensor && !tensor->defined();
  });
  return record;
}

Record copied_to(Record record, const at::Device& device) {
  for (auto& [name, value] : record) {
    auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor && tensor->defined()) *tensor = tensor->to(device, false, /*copy=*/true);
  }
  return record;
}

// A caller that gave up was told so, and may have gone on: nothing is changed for it any more.
[[noreturn]] void refuse_given_up(const std::string& what) {
  throw Error(ErrorCode::kCancelled, what + " was given up by its caller before it began");
}

std::string text_of(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ", "));
}

}  // namespace

OwnerOptimizer::OwnerOptimizer(const OwnerPlan& plan)
    : agent_(weft::detail::AgentAccess::core(current_agent())) {
  complaint_ = rpc::complaint_of([&] { set_up(plan); });
}

void OwnerOptimizer::set_up(const OwnerPlan& plan) {
  kind_ = &find_kind(plan.kind);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::set<c10::TensorImpl*> seen;
  for (const OwnerPlan::Group& group : plan.groups) {
    std::vector<at::Tensor> tensors;
    for (const RRef<at::Tensor>& parameter : group.parameters) {
      const at::Tensor& tensor = parameter.local_value();
      if (!tensor.defined()) throw Error(ErrorCode::kInvalidArgument, "a parameter is undefined");
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("a parameter of sizes {} is given twice", text_of(tensor.sizes())));
      }
      tensors.push_back(tensor);
    }
    parameters_.insert(parameters_.end(), tensors.begin(), tensors.end());
    groups.emplace_back(std::move(tensors), kind_->read_options(group.options));
  }
  optimizer_ = kind_->make(std::move(groups), *kind_->read_options(plan.defaults));
}

namespace {
std::shared_ptr<rpc::AgentCore> locked(const std::weak_ptr<rpc::AgentCore>& agent) {
  if (auto alive = agent.lock()) return alive;
  throw Error(ErrorCode::kShuttingDown, "the agent of an optimizer is gone");
}
}  // namespace

std::unique_lock<std::mutex> OwnerOptimizer::alone() const {
  return Stepping::of(*locked(agent_)).lock();
}

void OwnerOptimizer::require_made() const {
  if (complaint_) throw Error(static_cast<ErrorCode>(complaint_.code), complaint_.text);
}

size_t OwnerOptimizer::groups() const {
  require_made();
  return optimizer_->param_groups().size();
}

// --- a step ------------------------------------------------------------------------------------

StepResult OwnerOptimizer::step(const StepOrder& order) {
  const auto lock = alone();
  if (order.number == last_step_) return last_result_;
  if (order.number < last_step_) {
    return {Applied::kNo,
            0,
            {static_cast<uint8_t>(ErrorCode::kInvalidArgument),
             fmt::format("step {} came after step {}, and is too late", order.number, last_step_)}};
  }
  StepResult result = apply(order);
  // A step that was not begun may be tried again under its number.
  if (result.applied != Applied::kNo) {
    last_step_ = order.number;
    last_result_ = result;
  }
  return result;
}

rpc::Complaint OwnerOptimizer::check_step(const StepOrder& order) const {
  const auto lock = alone();
  return rpc::complaint_of([&] {
    require_made();
    // The step was applied already, with the options of that time: step() only answers again.
    if (order.number == last_step_) return;
    refuse_sparse(gradients(order.context), read_options(order.options));
  });
}

StepResult OwnerOptimizer::apply(const StepOrder& order) {
  StepResult result;
  result.complaint = rpc::complaint_of([&] {
    require_made();
    GroupOptions options = read_options(order.options);
    const std::vector<at::Tensor> gradients = this->gradients(order.context);
    refuse_sparse(gradients, options);
    if (current_call::cancelled()) refuse_given_up(fmt::format("step {}", order.number));
    use_options(std::move(options));
    result.parameters = count_defined(gradients);
    if (result.parameters > 0) {
      const LentGradients lent(parameters_, gradients);
      result.applied = Applied::kPartly;
      optimizer_->step();
    }
    result.applied = Applied::kYes;
  });
  return result;
}

std::vector<at::Tensor> OwnerOptimizer::gradients(int64_t context) const {
  const auto state = autograd::Contexts::of(*locked(agent_)).find_part(context);
  return state ? state->gradients().of(parameters_) : std::vector<at::Tensor>(parameters_.size());
}

void OwnerOptimizer::refuse_sparse(const std::vector<at::Tensor>& gradients,
                                   const GroupOptions& options) const {
  const auto& groups = optimizer_->param_groups();
  size_t next = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const at::Tensor& parameter : groups[i].params()) {
      const at::Tensor& gradient = gradients[next++];
      if (!gradient.defined() || !gradient.is_sparse()) continue;
      if (kind_->takes_sparse(*options[i])) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} takes no sparse gradients, or not with these options; the "
                              "parameter of sizes {} has one",
                              name_of(*kind_), text_of(parameter.sizes())));
    }
  }
}

OwnerOptimizer::GroupOptions OwnerOptimizer::read_options(
    const std::vector<Record>& options) const {
  const size_t groups = optimizer_->param_groups().size();
  if (options.size() != groups) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("options of {} groups for {}", options.size(), groups));
  }
  GroupOptions read;
  for (const Record& each : options) read.push_back(kind_->read_options(each));
  return read;
}

void OwnerOptimizer::use_options(GroupOptions options) {
  auto& groups = optimizer_->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) groups[i].set_options(std::move(options[i]));
}

// --- clipping ----------------------------------------------------------------------------------

NormReply OwnerOptimizer::gradient_norm(int64_t context, double norm_type) {
  const auto lock = alone();
  const c10::AutoGradMode off(false);
  NormReply reply;
  reply.complaint = rpc::complaint_of([&] {
    require_made();
    for (const at::Tensor& gradient : gradients(context)) {
      if (!gradient.defined()) continue;
      const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
      const double norm = values.numel() == 0 ? 0 : values.norm(norm_type).item<double>();
      add_norm(reply.norm, std::isinf(norm_type) ? norm : std::pow(norm, norm_type), norm_type);
    }
  });
  return reply;
}

rpc::Complaint OwnerOptimizer::scale_gradients(const ScaleOrder& order) {
  const auto lock = alone();
  if (order.number <= last_scaling_) return {};
  return rpc::complaint_of([&] {
    require_made();
    if (const auto state = autograd::Contexts::of(*locked(agent_)).find_part(order.context)) {
      const c10::AutoGradMode off(false);
      // Not in place: another leaf may have the same tensor as its gradient.
      std::vector<at::Tensor> scaled = state->gradients().of(parameters_);
      for (at::Tensor& gradient : scaled) {
        if (gradient.defined()) gradient = gradient * order.factor;
      }
      if (current_call::cancelled()) refuse_given_up(fmt::format("scaling {}", order.number));
      state->gradients().replace(parameters_, std::move(scaled));
    }
    last_scaling_ = order.number;
  });
}

// --- state -------------------------------------------------------------------------------------

OwnerOptimizer::State OwnerOptimizer::view_state() const {
  require_made();
  State state;
  for (const auto& group : optimizer_->param_groups()) {
    state.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto* kept = find_state(*optimizer_, parameter);
      state.back().push_back({parameter.sizes().vec(), std::nullopt});
      if (kept) state.back().back().state = compact(kind_->write(*kept));
    }
  }
  return state;
}

OwnerOptimizer::State OwnerOptimizer::state() {
  const auto lock = alone();
  State state = view_state();
  for (auto& group : state) {
    for (OptimizerState::Parameter& parameter : group) {
      if (parameter.state) parameter.state = copied_to(std::move(*parameter.state), at::kCPU);
    }
  }
  return state;
}

OwnerOptimizer::State OwnerOptimizer::outlined(State state) {
  for (auto& group : state) {
    for (OptimizerState::Parameter& parameter : group) {
      if (!parameter.state) continue;
      for (auto& [name, value] : *parameter.state) {
        const auto* tensor = std::get_if<at::Tensor>(&value);
        if (tensor) value = tensor->defined() ? text_of(tensor->sizes()) : std::string();
      }
    }
  }
  return state;
}

rpc::Complaint OwnerOptimizer::check_state(const State& state) const {
  const auto lock = alone();
  return rpc::complaint_of([&] {
    require_made();
    require_fit(state);
  });
}

void OwnerOptimizer::require_fit(const State& state) const {
  const auto& groups = optimizer_->param_groups();
  if (state.size() != groups.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("state of {} groups for {}", state.size(), groups.size()));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& parameters = groups[i].params();
    if (state[i].size() != parameters.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("state of {} parameters for the {} of group {}", state[i].size(),
                              parameters.size(), i));
    }
    for (size_t j = 0; j < parameters.size(); ++j) {
      if (parameters[j].sizes() != at::IntArrayRef(state[i][j].sizes)) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("state of a parameter of sizes {} for one of sizes {}",
                                text_of(state[i][j].sizes), text_of(parameters[j].sizes())));
      }
      if (state[i][j].state) require_fit(parameters[j], *state[i][j].state);
    }
  }
}

// `state` may be outlined: text in place of a tensor is its sizes.
void OwnerOptimizer::require_fit(const at::Tensor& parameter, const Record& state) const {
  const auto refuse = [this](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the state of {} {}", name_of(*kind_), what));
  };
  const Record blank = kind_->blank_state();
  for (const auto& [name, value] : blank) {
    if (!std::holds_alternative<at::Tensor>(value) && !state.contains(name)) {
      refuse("lacks " + name);
    }
  }
  for (const auto& [name, value] : state) {
    const auto known = blank.find(name);
    if (known == blank.end()) refuse("has no " + name);
    const auto* tensor = std::get_if<at::Tensor>(&value);
    const auto* outline = std::get_if<std::string>(&value);
    if (!std::holds_alternative<at::Tensor>(known->second) || (!tensor && !outline)) {
      if (known->second.index() != value.index()) refuse("has a " + name + " of another type");
      continue;
    }
    const std::string sizes = outline             ? *outline
                              : tensor->defined() ? text_of(tensor->sizes())
                                                  : "";
    if (!sizes.empty() && kind_->state_of_parameters_sizes() &&
        sizes != text_of(parameter.sizes())) {
      refuse(fmt::format("has a {} of sizes {} for a parameter of sizes {}", name, sizes,
                         text_of(parameter.sizes())));
    }
  }
}

rpc::Complaint OwnerOptimizer::load_state(const State& state) {
  const auto lock = alone();
  return rpc::complaint_of([&] {
    require_made();
    require_fit(state);
    // Read everything before anything is changed.
    std::vector<std::unique_ptr<torch::optim::OptimizerParamState>> read;
    size_t next = 0;
    for (const auto& group : state) {
      for (const OptimizerState::Parameter& each : group) {
        const at::Device device = parameters_[next++].device();
        read.push_back(each.state ? kind_->read_state(copied_to(*each.state, device)) : nullptr);
      }
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (read[i]) {
        set_state(*optimizer_, parameters_[i], std::move(read[i]));
      } else {
        clear_state(*optimizer_, parameters_[i]);
      }
    }
  });
}

}  // namespace weft::optim

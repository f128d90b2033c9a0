// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "optim/optimizer_driver.h"
#include "weft/optim.h"

namespace weft::optim {

AnyDistributedOptimizer::AnyDistributedOptimizer(Agent& agent, const OptimizerKind& kind,
                                                 std::vector<Group> groups,
                                                 const torch::optim::OptimizerOptions& defaults)
    : driver_(std::make_unique<OptimizerDriver>(agent, kind, std::move(groups), defaults)) {}

AnyDistributedOptimizer::AnyDistributedOptimizer(AnyDistributedOptimizer&&) noexcept = default;
AnyDistributedOptimizer& AnyDistributedOptimizer::operator=(AnyDistributedOptimizer&&) noexcept =
    default;
AnyDistributedOptimizer::~AnyDistributedOptimizer() = default;

void AnyDistributedOptimizer::step(const autograd::Context& context,
                                   std::optional<Timeout> timeout) {
  driver_->step(context.id(), timeout);
}
void AnyDistributedOptimizer::step(int64_t context_id, std::optional<Timeout> timeout) {
  driver_->step(context_id, timeout);
}
std::vector<OwnerOutcome> AnyDistributedOptimizer::last_step() const {
  return driver_->last_step();
}

double AnyDistributedOptimizer::clip_grad_norm(const autograd::Context& context, double max_norm,
                                               double norm_type) {
  return driver_->clip_grad_norm(context.id(), max_norm, norm_type);
}
double AnyDistributedOptimizer::clip_grad_norm(int64_t context_id, double max_norm,
                                               double norm_type) {
  return driver_->clip_grad_norm(context_id, max_norm, norm_type);
}

std::vector<torch::optim::OptimizerParamGroup>& AnyDistributedOptimizer::param_groups() {
  return driver_->options().param_groups();
}

namespace {
torch::optim::OptimizerParamGroup& group_at(torch::optim::Optimizer& options, size_t group) {
  auto& groups = options.param_groups();
  if (group < groups.size()) return groups[group];
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("there is no parameter group {}, only {}", group, groups.size()));
}
}  // namespace

torch::optim::OptimizerOptions& AnyDistributedOptimizer::group_options(size_t group) {
  return group_at(driver_->options(), group).options();
}
double AnyDistributedOptimizer::lr(size_t group) const {
  return group_at(driver_->options(), group).options().get_lr();
}
void AnyDistributedOptimizer::set_lr(double lr) {
  for (size_t i = 0; i < param_groups().size(); ++i) set_lr(i, lr);
}
void AnyDistributedOptimizer::set_lr(size_t group, double lr) {
  if (!(lr >= 0) || std::isinf(lr)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("a learning rate of {}", lr));
  }
  group_at(driver_->options(), group).options().set_lr(lr);
}
AnyDistributedOptimizer::operator torch::optim::Optimizer&() { return driver_->options(); }

OptimizerState AnyDistributedOptimizer::state() const { return driver_->state(); }
void AnyDistributedOptimizer::load_state(const OptimizerState& state) {
  driver_->load_state(state);
}

std::vector<WorkerInfo> AnyDistributedOptimizer::owners() const {
  std::vector<WorkerInfo> all;
  for (const auto& owner : driver_->owners()) all.push_back(owner.info);
  return all;
}

}  // namespace weft::optim

// SPDX-License-Identifier: BSD-3-Clause
#include "weft/optim/rprop.h"

#include <memory>
#include <utility>

#include <torch/optim/serialize.h>
#include <torch/utils.h>

#include "optim/dense_step.h"
#include "optim/param_state.h"

namespace weft::optim {
namespace {

void check_rprop(const RpropOptions& options) {
  const auto [shrink, grow] = options.etas();
  const auto [least, largest] = options.step_sizes();
  TORCH_CHECK(options.lr() >= 0, "Rprop: lr must not be negative: ", options.lr());
  TORCH_CHECK(shrink > 0 && shrink < 1 && grow > 1,
              "Rprop: etas must be between 0 and 1 and above 1: ", shrink, ", ", grow);
  TORCH_CHECK(least >= 0 && largest >= least,
              "Rprop: step_sizes must be a least and a largest size: ", least, ", ", largest);
}

}  // namespace

RpropOptions::RpropOptions(double lr) : lr_(lr) {}

double RpropOptions::get_lr() const { return lr(); }
void RpropOptions::set_lr(const double lr) { this->lr(lr); }

bool operator==(const RpropOptions& lhs, const RpropOptions& rhs) {
  return lhs.lr() == rhs.lr() && lhs.etas() == rhs.etas() && lhs.step_sizes() == rhs.step_sizes();
}

void RpropOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(etas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step_sizes);
}

void RpropOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(pair_t, etas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(pair_t, step_sizes);
}

bool operator==(const RpropParamState& lhs, const RpropParamState& rhs) {
  return lhs.step() == rhs.step() && torch::equal_if_defined(lhs.prev(), rhs.prev()) &&
         torch::equal_if_defined(lhs.step_size(), rhs.step_size());
}

void RpropParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(prev);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step_size);
}

void RpropParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, prev);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, step_size);
}

Rprop::Rprop(std::vector<torch::optim::OptimizerParamGroup> param_groups, RpropOptions defaults)
    : Optimizer(std::move(param_groups), std::make_unique<RpropOptions>(defaults)) {
  check_rprop(defaults);
  for (const auto& group : this->param_groups()) checked_options("Rprop", group, &check_rprop);
}

Rprop::Rprop(std::vector<at::Tensor> params, RpropOptions defaults)
    : Rprop(std::vector{torch::optim::OptimizerParamGroup(std::move(params))}, defaults) {}

at::Tensor Rprop::step(LossClosure closure) {
  return dense_step(
      *this, "Rprop", closure, &check_rprop,
      [this](at::Tensor& param, const RpropOptions& options) { update(param, options); });
}

void Rprop::update(at::Tensor& param, const RpropOptions& options) {
  const at::Tensor grad = param.grad();
  auto* state = find_state<RpropParamState>(*this, param);
  if (!state) {
    state = &add_state<RpropParamState>(*this, param);
    state->prev(at::zeros_like(param)).step_size(at::full_like(param, options.lr()));
  }
  ++state->step();

  const auto [shrink, grow] = options.etas();
  const auto [least, largest] = options.step_sizes();
  const at::Tensor agreement = grad.mul(state->prev());
  const at::Tensor turned = agreement.lt(0);
  const at::Tensor factor =
      at::ones_like(grad).masked_fill_(agreement.gt(0), grow).masked_fill_(turned, shrink);
  state->step_size().mul_(factor).clamp_(least, largest);
  // An element whose gradient changed its sign is not moved, and its next step size stays the same.
  state->prev().copy_(grad).masked_fill_(turned, 0);
  param.addcmul_(state->prev().sign(), state->step_size(), -1);
}

void Rprop::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<RpropParamState, RpropOptions>(archive, *this);
}

void Rprop::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<RpropParamState, RpropOptions>(archive, *this);
}

}  // namespace weft::optim

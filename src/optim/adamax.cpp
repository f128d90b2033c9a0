// SPDX-License-Identifier: BSD-3-Clause
#include "weft/optim/adamax.h"

#include <cmath>
#include <memory>
#include <utility>

#include <torch/optim/serialize.h>
#include <torch/utils.h>

#include "optim/dense_step.h"
#include "optim/param_state.h"

namespace weft::optim {
namespace {

void check_adamax(const AdamaxOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK(options.lr() >= 0, "Adamax: lr must not be negative: ", options.lr());
  TORCH_CHECK(beta1 >= 0 && beta1 < 1, "Adamax: the first beta must be from 0 to below 1: ", beta1);
  TORCH_CHECK(beta2 >= 0 && beta2 < 1,
              "Adamax: the second beta must be from 0 to below 1: ", beta2);
  TORCH_CHECK(options.eps() >= 0, "Adamax: eps must not be negative: ", options.eps());
  TORCH_CHECK(options.weight_decay() >= 0,
              "Adamax: weight_decay must not be negative: ", options.weight_decay());
}

}  // namespace

AdamaxOptions::AdamaxOptions(double lr) : lr_(lr) {}

double AdamaxOptions::get_lr() const { return lr(); }
void AdamaxOptions::set_lr(const double lr) { this->lr(lr); }

bool operator==(const AdamaxOptions& lhs, const AdamaxOptions& rhs) {
  return lhs.lr() == rhs.lr() && lhs.betas() == rhs.betas() && lhs.eps() == rhs.eps() &&
         lhs.weight_decay() == rhs.weight_decay();
}

void AdamaxOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void AdamaxOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

bool operator==(const AdamaxParamState& lhs, const AdamaxParamState& rhs) {
  return lhs.step() == rhs.step() && torch::equal_if_defined(lhs.exp_avg(), rhs.exp_avg()) &&
         torch::equal_if_defined(lhs.exp_inf(), rhs.exp_inf());
}

void AdamaxParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_inf);
}

void AdamaxParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_inf);
}

Adamax::Adamax(std::vector<torch::optim::OptimizerParamGroup> param_groups, AdamaxOptions defaults)
    : Optimizer(std::move(param_groups), std::make_unique<AdamaxOptions>(defaults)) {
  check_adamax(defaults);
  for (const auto& group : this->param_groups()) checked_options("Adamax", group, &check_adamax);
}

Adamax::Adamax(std::vector<at::Tensor> params, AdamaxOptions defaults)
    : Adamax(std::vector{torch::optim::OptimizerParamGroup(std::move(params))}, defaults) {}

at::Tensor Adamax::step(LossClosure closure) {
  return dense_step(
      *this, "Adamax", closure, &check_adamax,
      [this](at::Tensor& param, const AdamaxOptions& options) { update(param, options); });
}

void Adamax::update(at::Tensor& param, const AdamaxOptions& options) {
  at::Tensor grad = param.grad();
  auto* state = find_state<AdamaxParamState>(*this, param);
  if (!state) {
    state = &add_state<AdamaxParamState>(*this, param);
    state->exp_avg(at::zeros_like(param)).exp_inf(at::zeros_like(param));
  }
  ++state->step();

  const auto [beta1, beta2] = options.betas();
  if (options.weight_decay() != 0) grad = grad.add(param, options.weight_decay());
  state->exp_avg().mul_(beta1).add_(grad, 1 - beta1);
  at::Tensor& norm = state->exp_inf();
  at::maximum_out(norm, norm.mul_(beta2), grad.abs().add_(options.eps()));
  const double bias_correction = 1 - std::pow(beta1, static_cast<double>(state->step()));
  param.addcdiv_(state->exp_avg(), norm, -options.lr() / bias_correction);
}

void Adamax::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamaxParamState, AdamaxOptions>(archive, *this);
}

void Adamax::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdamaxParamState, AdamaxOptions>(archive, *this);
}

}  // namespace weft::optim

// SPDX-License-Identifier: BSD-3-Clause
#include "weft/optim/adadelta.h"

#include <memory>
#include <utility>

#include <torch/optim/serialize.h>
#include <torch/utils.h>

#include "optim/dense_step.h"
#include "optim/param_state.h"

namespace weft::optim {
namespace {

void check_adadelta(const AdadeltaOptions& options) {
  TORCH_CHECK(options.lr() >= 0, "Adadelta: lr must not be negative: ", options.lr());
  TORCH_CHECK(options.rho() >= 0 && options.rho() <= 1,
              "Adadelta: rho must be from 0 to 1: ", options.rho());
  TORCH_CHECK(options.eps() >= 0, "Adadelta: eps must not be negative: ", options.eps());
  TORCH_CHECK(options.weight_decay() >= 0,
              "Adadelta: weight_decay must not be negative: ", options.weight_decay());
}

}  // namespace

AdadeltaOptions::AdadeltaOptions(double lr) : lr_(lr) {}

double AdadeltaOptions::get_lr() const { return lr(); }
void AdadeltaOptions::set_lr(const double lr) { this->lr(lr); }

bool operator==(const AdadeltaOptions& lhs, const AdadeltaOptions& rhs) {
  return lhs.lr() == rhs.lr() && lhs.rho() == rhs.rho() && lhs.eps() == rhs.eps() &&
         lhs.weight_decay() == rhs.weight_decay();
}

void AdadeltaOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(rho);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void AdadeltaOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, rho);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

bool operator==(const AdadeltaParamState& lhs, const AdadeltaParamState& rhs) {
  return lhs.step() == rhs.step() && torch::equal_if_defined(lhs.square_avg(), rhs.square_avg()) &&
         torch::equal_if_defined(lhs.acc_delta(), rhs.acc_delta());
}

void AdadeltaParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(square_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(acc_delta);
}

void AdadeltaParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, square_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, acc_delta);
}

Adadelta::Adadelta(std::vector<torch::optim::OptimizerParamGroup> param_groups,
                   AdadeltaOptions defaults)
    : Optimizer(std::move(param_groups), std::make_unique<AdadeltaOptions>(defaults)) {
  check_adadelta(defaults);
  for (const auto& group : this->param_groups())
    checked_options("Adadelta", group, &check_adadelta);
}

Adadelta::Adadelta(std::vector<at::Tensor> params, AdadeltaOptions defaults)
    : Adadelta(std::vector{torch::optim::OptimizerParamGroup(std::move(params))}, defaults) {}

at::Tensor Adadelta::step(LossClosure closure) {
  return dense_step(
      *this, "Adadelta", closure, &check_adadelta,
      [this](at::Tensor& param, const AdadeltaOptions& options) { update(param, options); });
}

void Adadelta::update(at::Tensor& param, const AdadeltaOptions& options) {
  at::Tensor grad = param.grad();
  auto* state = find_state<AdadeltaParamState>(*this, param);
  if (!state) {
    state = &add_state<AdadeltaParamState>(*this, param);
    state->square_avg(at::zeros_like(param)).acc_delta(at::zeros_like(param));
  }
  ++state->step();

  if (options.weight_decay() != 0) grad = grad.add(param, options.weight_decay());
  const auto average_in = [rho = options.rho()](at::Tensor& average, const at::Tensor& value) {
    average.mul_(rho).addcmul_(value, value, 1 - rho);
  };
  const auto root = [eps = options.eps()](const at::Tensor& average) {
    return average.add(eps).sqrt_();
  };
  average_in(state->square_avg(), grad);
  const at::Tensor delta = root(state->acc_delta()).div_(root(state->square_avg())).mul_(grad);
  average_in(state->acc_delta(), delta);
  param.add_(delta, -options.lr());
}

void Adadelta::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdadeltaParamState, AdadeltaOptions>(archive, *this);
}

void Adadelta::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdadeltaParamState, AdadeltaOptions>(archive, *this);
}

}  // namespace weft::optim

// The optimizers of libtorch and of Weft that can be used over several workers, and their fields.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "weft/optim/adadelta.h"
#include "weft/optim/adamax.h"
#include "weft/optim/optimizer_kind.h"
#include "weft/optim/rprop.h"

namespace weft::optim {

template <>
struct OptimizerTraits<torch::optim::SGD> {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  // Weight decay would add a dense tensor to a sparse one, in the middle of a step.
  static bool takes_sparse(const Options& options) { return options.weight_decay() == 0; }
  static void visit_options(auto& options, auto& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  static void visit_state(auto& state, auto& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
};

namespace detail {
template <typename TheOptions, typename TheState>
struct AdamTraits {
  using Options = TheOptions;
  using State = TheState;
  static bool takes_sparse(const Options&) { return false; }
  static void visit_options(auto& options, auto& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  static void visit_state(auto& state, auto& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};
}  // namespace detail

template <>
struct OptimizerTraits<torch::optim::Adam>
    : detail::AdamTraits<torch::optim::AdamOptions, torch::optim::AdamParamState> {};
template <>
struct OptimizerTraits<torch::optim::AdamW>
    : detail::AdamTraits<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {};

template <>
struct OptimizerTraits<torch::optim::Adagrad> {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  // Weight decay would add a dense tensor to a sparse one, in the middle of a step.
  static bool takes_sparse(const Options& options) { return options.weight_decay() == 0; }
  static void visit_options(auto& options, auto& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  static void visit_state(auto& state, auto& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
};

template <>
struct OptimizerTraits<torch::optim::RMSprop> {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static bool takes_sparse(const Options&) { return false; }
  static void visit_options(auto& options, auto& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  static void visit_state(auto& state, auto& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
};

template <>
struct OptimizerTraits<Adadelta> {
  using Options = AdadeltaOptions;
  using State = AdadeltaParamState;
  static bool takes_sparse(const Options&) { return false; }
  static void visit_options(auto& options, auto& visit) {
    visit("lr", options.lr());
    visit("rho", options.rho());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
  }
  static void visit_state(auto& state, auto& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("acc_delta", state.acc_delta());
  }
};

template <>
struct OptimizerTraits<Adamax> {
  using Options = AdamaxOptions;
  using State = AdamaxParamState;
  static bool takes_sparse(const Options&) { return false; }
  static void visit_options(auto& options, auto& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
  }
  static void visit_state(auto& state, auto& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_inf", state.exp_inf());
  }
};

template <>
struct OptimizerTraits<Rprop> {
  using Options = RpropOptions;
  using State = RpropParamState;
  static bool takes_sparse(const Options&) { return false; }
  static void visit_options(auto& options, auto& visit) {
    visit("lr", options.lr());
    visit("etas", options.etas());
    visit("step_sizes", options.step_sizes());
  }
  static void visit_state(auto& state, auto& visit) {
    visit("step", state.step());
    visit("prev", state.prev());
    visit("step_size", state.step_size());
  }
};

}  // namespace weft::optim

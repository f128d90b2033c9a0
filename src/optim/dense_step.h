// The part of step() that Adadelta, Adamax and Rprop have in common.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

namespace weft::optim {

/// The options of a group, after `check`, which throws if they make no sense. Every step checks
/// them: groups may be added and their options changed at any time.
template <typename Options>
const Options& checked_options(const char* name, const torch::optim::OptimizerParamGroup& group,
                               void (*check)(const Options&)) {
  const auto* options = dynamic_cast<const Options*>(&group.options());
  TORCH_CHECK(options, name, ": a parameter group has the options of another optimizer");
  check(*options);
  return *options;
}

/// Updates every parameter that has a gradient; the gradient must be dense and the parameter real.
template <typename Options, typename Update>
at::Tensor dense_step(torch::optim::Optimizer& optimizer, const char* name,
                      const torch::optim::Optimizer::LossClosure& closure,
                      void (*check)(const Options&), const Update& update) {
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  for (auto& group : optimizer.param_groups()) {
    const Options& options = checked_options(name, group, check);
    for (at::Tensor& param : group.params()) {
      if (!param.grad().defined()) continue;
      TORCH_CHECK(param.grad().layout() == at::kStrided, name,
                  " takes no sparse gradients; a parameter of this shape has one: ", param.sizes());
      TORCH_CHECK(!param.is_complex(), name,
                  " takes no complex parameters; one of this shape is: ", param.sizes());
      update(param, options);
    }
  }
  return loss;
}

}  // namespace weft::optim

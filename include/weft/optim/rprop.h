// Rprop (resilient backpropagation), which libtorch has in Python only.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "weft/export.h"

namespace weft::optim {

struct WEFT_API RpropOptions : torch::optim::OptimizerCloneableOptions<RpropOptions> {
  using pair_t = std::tuple<double, double>;

  RpropOptions(double lr = 1e-2);
  TORCH_ARG(double, lr);  // the first step size of a parameter; has no effect later
  TORCH_ARG(pair_t, etas) = {0.5, 1.2};
  TORCH_ARG(pair_t, step_sizes) = {1e-6, 50};  // least and largest

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(const double lr) override;
  friend bool operator==(const RpropOptions& lhs, const RpropOptions& rhs);
};

struct WEFT_API RpropParamState : torch::optim::OptimizerCloneableParamState<RpropParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, prev);  // the gradient of the step before
  TORCH_ARG(at::Tensor, step_size);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const RpropParamState& lhs, const RpropParamState& rhs);
};

/// Computes what torch.optim.Rprop does. Parameters without a gradient are left alone; sparse
/// gradients and options out of range are refused with c10::Error. As with libtorch's own
/// optimizers, load() takes the parameters' state and keeps the options.
class WEFT_API Rprop : public torch::optim::Optimizer {
 public:
  explicit Rprop(std::vector<torch::optim::OptimizerParamGroup> param_groups,
                 RpropOptions defaults = {});
  explicit Rprop(std::vector<at::Tensor> params, RpropOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void update(at::Tensor& param, const RpropOptions& options);
};

}  // namespace weft::optim

// Adamax, which libtorch has in Python only.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "weft/export.h"

namespace weft::optim {

struct WEFT_API AdamaxOptions : torch::optim::OptimizerCloneableOptions<AdamaxOptions> {
  using betas_t = std::tuple<double, double>;

  AdamaxOptions(double lr = 2e-3);
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(const double lr) override;
  friend bool operator==(const AdamaxOptions& lhs, const AdamaxOptions& rhs);
};

struct WEFT_API AdamaxParamState : torch::optim::OptimizerCloneableParamState<AdamaxParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_inf);  // the largest magnitude, decaying

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const AdamaxParamState& lhs, const AdamaxParamState& rhs);
};

/// Computes what torch.optim.Adamax does. Parameters without a gradient are left alone; sparse
/// gradients and options out of range are refused with c10::Error. As with libtorch's own
/// optimizers, load() takes the parameters' state and keeps the options.
class WEFT_API Adamax : public torch::optim::Optimizer {
 public:
  explicit Adamax(std::vector<torch::optim::OptimizerParamGroup> param_groups,
                  AdamaxOptions defaults = {});
  explicit Adamax(std::vector<at::Tensor> params, AdamaxOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void update(at::Tensor& param, const AdamaxOptions& options);
};

}  // namespace weft::optim

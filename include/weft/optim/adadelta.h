// Adadelta, which libtorch has in Python only.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "weft/export.h"

namespace weft::optim {

struct WEFT_API AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1.0);
  TORCH_ARG(double, lr);
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(const double lr) override;
  friend bool operator==(const AdadeltaOptions& lhs, const AdadeltaOptions& rhs);
};

struct WEFT_API AdadeltaParamState
    : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, square_avg);  // of the gradients
  TORCH_ARG(at::Tensor, acc_delta);   // the same of the updates

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const AdadeltaParamState& lhs, const AdadeltaParamState& rhs);
};

/// Computes what torch.optim.Adadelta does. Parameters without a gradient are left alone; sparse
/// gradients and options out of range are refused with c10::Error. As with libtorch's own
/// optimizers, load() takes the parameters' state and keeps the options.
class WEFT_API Adadelta : public torch::optim::Optimizer {
 public:
  explicit Adadelta(std::vector<torch::optim::OptimizerParamGroup> param_groups,
                    AdadeltaOptions defaults = {});
  explicit Adadelta(std::vector<at::Tensor> params, AdadeltaOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void update(at::Tensor& param, const AdadeltaOptions& options);
};

}  // namespace weft::optim

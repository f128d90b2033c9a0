// The part of a distributed optimizer on a worker that owns parameters.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "optim/optimizer_message.h"
#include "rpc/agent_core.h"
#include "rpc/complaint.h"
#include "weft/optim/optimizer_kind.h"

namespace weft::optim {

/// One optimizer over this worker's parameters. The trainer numbers the steps; a number that comes
/// again gets the same answer, and nothing is applied twice. Thread-safe: methods that use the
/// optimizer lock Stepping, except view_state().
class OwnerOptimizer {
 public:
  explicit OwnerOptimizer(const OwnerPlan& plan);
  /// What is wrong with the plan: parameters that are elsewhere or given twice, for example. If
  /// something is, all other methods return or throw the same complaint.
  rpc::Complaint complaint() const { return complaint_; }

  /// Changes nothing if the caller gave up while this waited for Stepping. The same holds for
  /// scale_gradients().
  StepResult step(const StepOrder& order);
  /// The complaint with which step() would refuse this order before it changes anything.
  rpc::Complaint check_step(const StepOrder& order) const;
  /// The sum of |g|^norm_type over the gradients that the context has for this optimizer's
  /// parameters; the largest |g| if `norm_type` is infinite.
  NormReply gradient_norm(int64_t context, double norm_type);
  rpc::Complaint scale_gradients(const ScaleOrder& order);

  using State = std::vector<std::vector<OptimizerState::Parameter>>;  // by group
  /// A copy, in the memory of the CPU.
  State state();
  /// The tensors themselves, not copies. The caller must have locked Stepping.
  State view_state() const;
  /// Changes nothing if the state does not fit.
  rpc::Complaint load_state(const State& state);
  /// Makes the same checks and loads nothing. The state may be an outlined() one.
  rpc::Complaint check_state(const State& state) const;
  /// The state with each tensor replaced by the text of its sizes.
  static State outlined(State state);

  size_t groups() const;

 private:
  void set_up(const OwnerPlan& plan);
  std::unique_lock<std::mutex> alone() const;
  void require_made() const;
  void require_fit(const State& state) const;
  void require_fit(const at::Tensor& parameter, const Record& state) const;
  using GroupOptions = std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>;
  GroupOptions read_options(const std::vector<Record>& options) const;
  void use_options(GroupOptions options);
  StepResult apply(const StepOrder& order);
  /// The gradients that the context has for all parameters, in order; undefined for a parameter
  /// without one.
  std::vector<at::Tensor> gradients(int64_t context) const;
  void refuse_sparse(const std::vector<at::Tensor>& gradients, const GroupOptions& options) const;

  const std::weak_ptr<rpc::AgentCore> agent_;
  rpc::Complaint complaint_;
  const OptimizerKind* kind_ = nullptr;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<at::Tensor> parameters_;  // of all groups, in order
  uint64_t last_step_ = 0;
  StepResult last_result_;
  uint64_t last_scaling_ = 0;
};

}  // namespace weft::optim

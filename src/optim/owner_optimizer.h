// The part of a distributed optimizer that lives where its parameters do.
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

/// One optimizer over this worker's parameters. Steps are numbered by the trainer that has it; one
/// that comes again is answered as before. Thread-safe: everything happens while Stepping is
/// locked.
class OwnerOptimizer {
 public:
  explicit OwnerOptimizer(const OwnerPlan& plan);
  /// The complaint about a wrong plan: parameters that are elsewhere or given twice, for example.
  /// All other methods then give the same complaint, or throw it.
  rpc::Complaint complaint() const { return complaint_; }

  StepResult step(const StepOrder& order);
  /// The complaint with which step() would refuse, before it changes anything.
  rpc::Complaint check_step(const StepOrder& order) const;
  /// The norm of all gradients in the context, to the power `norm_type` unless that is infinite.
  NormReply gradient_norm(int64_t context, double norm_type);
  rpc::Complaint scale_gradients(const ScaleOrder& order);

  using State = std::vector<std::vector<OptimizerState::Parameter>>;  // by group
  /// A copy, in memory that can be sent.
  State state();
  /// Does not copy tensors and does not lock: the caller has Stepping locked.
  State view_state() const;
  /// Checks first: a state that does not fit changes nothing.
  rpc::Complaint load_state(const State& state);
  /// Only checks; tensors may be outlined.
  rpc::Complaint check_state(const State& state) const;
  /// The state with the sizes of tensors in place of the tensors.
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
  /// The gradients of all parameters, in order; undefined where there is none.
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

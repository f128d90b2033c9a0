// The trainer's side of a distributed optimizer: asks every owner of parameters, by calls, to step,
// clip, or give and take its state.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "optim/optimizer_message.h"
#include "optim/owner_optimizer.h"
#include "rpc/agent_core.h"
#include "weft/optim.h"

namespace weft::optim {

class TimeLimit;

class OptimizerDriver {
 public:
  using Group = AnyDistributedOptimizer::Group;
  OptimizerDriver(Agent& agent, const OptimizerKind& kind, std::vector<Group> groups,
                  const torch::optim::OptimizerOptions& defaults);

  /// The driver of an optimizer, for layers above.
  static OptimizerDriver& of(AnyDistributedOptimizer& optimizer) { return *optimizer.driver_; }

  void step(int64_t context, std::optional<Timeout> timeout);
  double clip_grad_norm(int64_t context, double max_norm, double norm_type);
  std::vector<OwnerOutcome> last_step() const;

  torch::optim::Optimizer& options() { return *options_; }
  std::vector<Record> write_options() const;
  /// The owners have loaded another state: takes over `options`, and forgets a step that failed
  /// before.
  void on_loaded(const std::vector<Record>& options);
  /// Throws kInvalidArgument if these are not options of this optimizer.
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> read_options(
      const std::vector<Record>& options) const;

  OptimizerState state() const;
  void load_state(const OptimizerState& state);

  /// A worker that has parameters of this optimizer.
  struct Owner {
    WorkerInfo info;
    RRef<OwnerOptimizer> optimizer;
    struct Place {
      size_t group, index;
    };
    std::vector<std::vector<Place>> places;  // of its parameters among all, by group
  };
  const std::vector<Owner>& owners() const { return owners_; }
  const OptimizerKind& kind() const { return kind_; }

 private:
  /// A step that the owners were told to apply and that not all of them have applied.
  struct Unfinished {
    int64_t context;
    std::vector<OwnerOutcome> outcomes;  // by owner; empty while the first attempt goes on
  };

  std::vector<OwnerPlan> plan(const std::vector<Group>& groups,
                              const torch::optim::OptimizerOptions& defaults);
  Owner& owner_of(const RRef<at::Tensor>& parameter, std::vector<OwnerPlan>& plans, size_t groups);
  void make_optimizers(Agent& agent, std::vector<OwnerPlan> plans);
  void check_context(int64_t context) const;
  void take_loaded(const std::vector<Record>& options) WEFT_REQUIRES(stepping_);
  void check_options() const;
  uint64_t number_for(int64_t context) const WEFT_REQUIRES(stepping_);
  std::vector<OwnerOutcome> outcomes_before(int64_t context) const WEFT_REQUIRES(stepping_);
  bool may_be_refused(int64_t context) const;
  void ask_first(const StepOrder& order, const TimeLimit& time) WEFT_REQUIRES(stepping_);
  void begin(const StepOrder& order) WEFT_REQUIRES(stepping_);
  std::optional<Error> note(const StepOrder& order, std::vector<OwnerOutcome> outcomes);
  void scale(ScaleOrder order) WEFT_REQUIRES(stepping_);
  // These three templates are defined in optim/ask_owners.h.
  template <auto Method, typename Arguments>
  auto ask_owners(const TimeLimit& time, const Arguments& arguments) const;
  template <auto Method, typename... Args>
  auto ask_all(const Args&... args) const;
  template <typename Answers>
  void throw_failures(const char* what, const Answers& answers) const;
  /// The state of all parameters, from the part of each owner.
  OptimizerState join_parts(const std::vector<OwnerOptimizer::State>& parts) const;
  /// The part of each owner. Throws kInvalidArgument if the state is not one of this optimizer.
  std::vector<OwnerOptimizer::State> split_by_owner(const OptimizerState& state) const;

  const std::shared_ptr<rpc::AgentCore> agent_;
  const OptimizerKind& kind_;
  const std::unique_ptr<torch::optim::Optimizer> options_;
  std::vector<size_t> group_sizes_;  // in parameters
  std::vector<Owner> owners_;

  mutable base::Mutex stepping_;  // held during a step, clipping, state() and load_state()
  uint64_t number_ WEFT_GUARDED_BY(stepping_) = 0;
  uint64_t scalings_ WEFT_GUARDED_BY(stepping_) = 0;
  // A scaling that not all owners have carried out. Those that have must not measure and scale
  // their gradients again beside gradients that are as they were.
  std::optional<ScaleOrder> unfinished_scaling_ WEFT_GUARDED_BY(stepping_);
  std::optional<Unfinished> unfinished_ WEFT_GUARDED_BY(stepping_);
  // The contexts of unfinished steps after which another step was begun.
  std::set<int64_t> given_up_ WEFT_GUARDED_BY(stepping_);
  mutable base::Mutex mutex_;
  std::vector<OwnerOutcome> outcomes_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::optim

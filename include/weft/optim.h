// Optimizers over parameters that live on several workers.
//
//   weft::optim::DistributedOptimizer<torch::optim::Adam> optimizer(parameters,
//                                                                   torch::optim::AdamOptions(0.05));
//   weft::autograd::Context context;
//   context.backward({loss()});
//   optimizer.step(context);
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/autograd.h"
#include "weft/export.h"
#include "weft/optim/optimizer_traits.h"
#include "weft/optim/schedulers.h"

namespace torch::optim {
class LBFGS;
}

namespace weft::optim {

/// What a step did on one of the workers that own parameters.
struct OwnerOutcome {
  enum class Applied : uint8_t {
    kYes,
    kNo,
    kPartly,   // the optimizer threw in the middle
    kUnknown,  // no answer: the worker or its connection was lost, or the timeout passed
  };
  WorkerInfo owner;
  Applied applied = Applied::kUnknown;
  size_t parameters = 0;                     // that had a gradient
  std::string failure = {};                  // empty: none
  ErrorCode code = ErrorCode::kRemoteError;  // of the failure
};

/// Everything an optimizer remembers. Parameters are in the order in which they were given.
struct OptimizerState {
  struct Parameter {
    std::vector<int64_t> sizes;
    std::optional<Record> state;  // nothing if the parameter has had no gradient yet
  };
  struct Group {
    Record options;
    std::vector<Parameter> parameters;
  };
  std::string kind;
  std::vector<Group> groups;
};

class OptimizerDriver;

/// The part of DistributedOptimizer that does not depend on the class of the optimizer. Every owner
/// has an optimizer of that class for its parameters. A worker does one step after the other,
/// whichever trainers they come from.
class WEFT_API AnyDistributedOptimizer {
 public:
  /// An object that was moved from can only be assigned to or destroyed.
  AnyDistributedOptimizer(AnyDistributedOptimizer&&) noexcept;
  AnyDistributedOptimizer& operator=(AnyDistributedOptimizer&&) noexcept;
  ~AnyDistributedOptimizer();

  /// Applies the gradients of `context` on all owners, at the same time. Parameters without a
  /// gradient are left alone. An owner applies a step once, even if the request reaches it several
  /// times.
  ///
  /// If an owner fails, throws an error that names every owner that failed, and what was applied
  /// where. Calling step() again with the same context sends the same step again: an owner that has
  /// not applied it applies it now, an owner that has applied it does not apply it twice, and an
  /// owner whose optimizer threw in the middle (kPartly) fails again. An owner that has not begun a
  /// step when its time is over does not begin it.
  ///
  /// Throws kInvalidArgument, before anything is sent, if this worker made the context and never
  /// called backward() in it, if an option makes no sense, or if the step of this context failed
  /// and another step came after it. Throws kInvalidArgument, before any owner changes anything, if
  /// a gradient is sparse and the class or its options take none.
  void step(const autograd::Context& context, std::optional<Timeout> timeout = std::nullopt);
  /// For functions that were called in the context of another worker.
  void step(int64_t context_id, std::optional<Timeout> timeout = std::nullopt);
  /// What the last step did, by owner.
  std::vector<OwnerOutcome> last_step() const;

  /// Scales the gradients that `context` has for all parameters, so that their common norm is at
  /// most `max_norm`. Returns the norm before. If that is not finite, nothing is scaled. If an
  /// owner fails, throws; calling it again with the same context first finishes what that call
  /// began, so that all gradients are scaled alike, unless another context was clipped in between.
  double clip_grad_norm(const autograd::Context& context, double max_norm, double norm_type = 2);
  double clip_grad_norm(int64_t context_id, double max_norm, double norm_type = 2);

  /// The options of each group; the next step sends them to the owners. The groups have no
  /// parameters here.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  double lr(size_t group = 0) const;
  void set_lr(double lr);
  void set_lr(size_t group, double lr);
  /// An optimizer with the same options and no parameters, for schedulers of libtorch and of
  /// weft/optim/schedulers.h: `torch::optim::StepLR schedule(optimizer, 30)`.
  operator torch::optim::Optimizer&();

  /// The state of one worker travels in one message of at most 4,096 tensors, so this fails for
  /// more than about 2,000 parameters on one worker. Checkpoints have no such limit.
  OptimizerState state() const;
  /// Throws kInvalidArgument, before anything is changed, for the state of an optimizer of another
  /// class, or with other groups or parameters.
  void load_state(const OptimizerState& state);

  std::vector<WorkerInfo> owners() const;

 protected:
  struct Group {
    std::vector<RRef<at::Tensor>> parameters;
    std::unique_ptr<torch::optim::OptimizerOptions> options;
  };
  AnyDistributedOptimizer(Agent& agent, const OptimizerKind& kind, std::vector<Group> groups,
                          const torch::optim::OptimizerOptions& defaults);
  torch::optim::OptimizerOptions& group_options(size_t group);

 private:
  friend class OptimizerDriver;
  std::unique_ptr<OptimizerDriver> driver_;
};

/// Parameters, maybe with options of their own. It has a constructor because g++ 12 crashes on an
/// aggregate in a nested list that leaves the options out.
template <typename Options>
struct ParameterGroup {
  ParameterGroup(std::vector<RRef<at::Tensor>> of, std::optional<Options> with = std::nullopt)
      : parameters(std::move(of)), options(std::move(with)) {}

  std::vector<RRef<at::Tensor>> parameters;
  std::optional<Options> options;
};

template <typename Opt>
class DistributedOptimizer : public AnyDistributedOptimizer {
  static_assert(!std::is_same_v<Opt, torch::optim::LBFGS>,
                "LBFGS cannot be distributed: its line search evaluates the whole model several "
                "times in one step, and its directions need products over all parameters together");

 public:
  using Options = typename OptimizerTraits<Opt>::Options;
  using Groups = std::vector<ParameterGroup<Options>>;

  /// Returns when every owner has its optimizer. Throws kInvalidArgument for parameters that are
  /// given twice or cannot be optimized and for options that make no sense.
  DistributedOptimizer(std::vector<RRef<at::Tensor>> parameters, Options defaults)
      : DistributedOptimizer(current_agent(), std::move(parameters), std::move(defaults)) {}
  DistributedOptimizer(Agent& agent, std::vector<RRef<at::Tensor>> parameters, Options defaults)
      : DistributedOptimizer(agent, Groups{{std::move(parameters)}}, std::move(defaults)) {}
  DistributedOptimizer(Groups groups, Options defaults)
      : DistributedOptimizer(current_agent(), std::move(groups), std::move(defaults)) {}
  DistributedOptimizer(Agent& agent, Groups groups, Options defaults)
      : AnyDistributedOptimizer(agent, detail::TypedKind<Opt>::get(),
                                with_options(std::move(groups), defaults), defaults) {}

  /// The options of a group; the next step sends them to the owners.
  Options& options(size_t group = 0) { return dynamic_cast<Options&>(group_options(group)); }

 private:
  static std::vector<Group> with_options(Groups groups, const Options& defaults) {
    std::vector<Group> all;
    for (auto& group : groups) {
      all.push_back({std::move(group.parameters),
                     std::make_unique<Options>(group.options ? *group.options : defaults)});
    }
    return all;
  }
};

}  // namespace weft::optim

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
    kUnknown,  // the worker, or the connection to it, was lost
  };
  WorkerInfo owner;
  Applied applied = Applied::kUnknown;
  size_t parameters = 0;                     // that had a gradient
  std::string failure = {};                  // empty: none
  ErrorCode code = ErrorCode::kRemoteError;  // of the failure
};

/// Everything an optimizer remembers, parameters in the order in which they were given.
struct OptimizerState {
  struct Parameter {
    std::vector<int64_t> sizes;
    std::optional<Record> state;  // nothing: it has had no gradient yet
  };
  struct Group {
    Record options;
    std::vector<Parameter> parameters;
  };
  std::string kind;
  std::vector<Group> groups;
};

class OptimizerDriver;

/// The part of a DistributedOptimizer that does not depend on its class. Every owner has an
/// optimizer of that class for its parameters; steps on one worker, of all trainers, run one after
/// the other.
class WEFT_API AnyDistributedOptimizer {
 public:
  /// An optimizer that was moved from can be assigned to or destroyed.
  AnyDistributedOptimizer(AnyDistributedOptimizer&&) noexcept;
  AnyDistributedOptimizer& operator=(AnyDistributedOptimizer&&) noexcept;
  ~AnyDistributedOptimizer();

  /// Applies the gradients of `context` on all owners, at the same time; parameters without one are
  /// left alone. Each owner applies a step once, however often the network makes it be sent. Throws
  /// an error that names every owner that failed, and what was applied where. Called again with the
  /// same context after it threw, it completes the step: no owner applies it twice.
  /// Throws kInvalidArgument, before anything is sent, if there was no backward() in the context,
  /// if an option makes no sense, or if another step came after the one of this context that
  /// failed; and before anything is changed on any owner, if a gradient is sparse and the class or
  /// its options take none.
  void step(const autograd::Context& context, std::optional<Timeout> timeout = std::nullopt);
  /// The same for functions that were called in the context of another worker.
  void step(int64_t context_id, std::optional<Timeout> timeout = std::nullopt);
  /// What the last step did, by owner.
  std::vector<OwnerOutcome> last_step() const;

  /// Scales the gradients in `context` of all parameters so that their norm together is at most
  /// `max_norm`; returns what it was. A norm that is not finite scales nothing.
  double clip_grad_norm(const autograd::Context& context, double max_norm, double norm_type = 2);
  double clip_grad_norm(int64_t context_id, double max_norm, double norm_type = 2);

  /// The options of each group; the next step takes them along. The groups have no parameters here.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  double lr(size_t group = 0) const;
  void set_lr(double lr);
  void set_lr(size_t group, double lr);
  /// For a scheduler of libtorch's (weft/optim/schedulers.h has more) to work on:
  /// `torch::optim::StepLR schedule(optimizer, 30)`. Has options and no parameters.
  operator torch::optim::Optimizer&();

  /// The state of more than some 2,000 parameters on one worker does not fit into a message; a
  /// checkpoint takes it.
  OptimizerState state() const;
  /// All or nothing: throws kInvalidArgument, before anything is changed, for the state of an
  /// optimizer of another class, or with other groups or parameters.
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

/// Parameters, maybe with options of their own. Not an aggregate: g++ 12 breaks down over one in a
/// nested list that leaves the options out.
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

  /// The options of a group; the next step takes them along.
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

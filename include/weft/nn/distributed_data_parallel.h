// The same module on several workers, each with its own data: their gradients are averaged.
//
//   weft::ProcessGroup trainers = weft::new_group({"trainer0", "trainer1"});
//   weft::nn::DistributedDataParallel<NetImpl> net(std::make_shared<NetImpl>(), trainers);
//   loss(net.forward(input), target).backward();  // .grad is the average over the trainers
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "weft/export.h"
#include "weft/process_group.h"

namespace weft::nn {

class Reducer;

struct DataParallelOptions {
  /// Gradients are reduced so many bytes at a time: the first ones, which are there when most of
  /// the backward pass is still to come, and all others.
  size_t first_bucket_bytes = size_t{1} << 20;
  size_t bucket_bytes = size_t{25} << 20;
  /// Whether a backward pass may leave parameters without a gradient. Those that no member used
  /// keep what they have; without this, one that is left out is an error.
  bool find_unused_parameters = false;
  /// Whether every forward in training begins with the first member's buffers.
  bool broadcast_buffers = true;
  /// Parameters with sparse gradients, besides those of embeddings that were made so.
  std::vector<std::string> sparse_parameters = {};
};

/// While it lives, backward passes leave gradients as they are: to accumulate over several batches,
/// of which the last is done without it. Both forward and backward belong into it.
class [[nodiscard]] WEFT_API NoSync {
 public:
  explicit NoSync(std::shared_ptr<Reducer> reducer);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  const std::shared_ptr<Reducer> reducer_;
};

/// The part of a DistributedDataParallel that does not depend on its class.
class WEFT_API DataParallel : public torch::nn::Module {
 public:
  NoSync no_sync() { return NoSync(reducer_); }
  const ProcessGroup& process_group() const { return group_; }

  /// For layers above.
  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }

 protected:
  DataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
               const DataParallelOptions& options);
  ~DataParallel() override;
  /// To be called before every forward.
  void begin_forward();

 private:
  const ProcessGroup group_;
  std::shared_ptr<Reducer> reducer_;
};

/// A replica of a module that every member of the group has. Made by all of them at the same time:
/// parameters and buffers become those of the first one. From then on every backward pass, be it
/// loss.backward() or that of a weft::autograd::Context, ends with gradients that are the averages
/// over all members, in `.grad` or in the context; so replicas that are stepped alike stay equal.
/// Gradients are sent while the pass goes on.
///
/// Every member runs the same passes in the same order. The module must have its parameters, on
/// their devices, before. Backward passes of one module come one after the other.
///
/// A member that is lost, or fails in the middle of a pass, ends the pass on the others with an
/// error; so do all later ones. Those who are left make a new group and a new replica.
template <typename M>
class DistributedDataParallel : public DataParallel {
  static_assert(!std::is_base_of_v<torch::detail::ModuleHolderIndicator, M>,
                "name the module's own class, such as torch::nn::LinearImpl for torch::nn::Linear");

 public:
  /// Throws kInvalidArgument, naming what differs, if the members do not bring the same module.
  DistributedDataParallel(std::shared_ptr<M> module, const ProcessGroup& group,
                          const DataParallelOptions& options = {})
      : DataParallel(module, group, options), module_(std::move(module)) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<M>& module, const ProcessGroup& group,
                          const DataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), group, options) {}

  template <typename... Args>
  auto forward(Args&&... args) {
    begin_forward();
    return module_->forward(std::forward<Args>(args)...);
  }

  const std::shared_ptr<M>& module() const { return module_; }

 private:
  const std::shared_ptr<M> module_;
};

struct JoinOptions {
  /// Whether gradients are averaged over the members that still have batches, not over all.
  bool average_over_active = false;
};

/// Runs `batches`, in which this member trains on all it has, and then waits for those that have
/// more: it takes no part in their passes, and they do not wait for it. At the end all have the
/// parameters and buffers of a member that had the most. Every member calls it, with the same
/// modules; what `batches` throws ends it on all of them.
WEFT_API void join(const std::vector<DataParallel*>& modules, const std::function<void()>& batches,
                   const JoinOptions& options = {});

}  // namespace weft::nn

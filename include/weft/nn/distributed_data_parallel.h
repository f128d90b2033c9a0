// Data parallel training: several workers have the same module, each with its own data, and their
// gradients are averaged.
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
  /// Gradients are averaged in buckets. This is the size of the first bucket of each element type
  /// and device; it is small, so that sending begins early in the backward pass.
  size_t first_bucket_bytes = size_t{1} << 20;
  /// The size of all other buckets.
  size_t bucket_bytes = size_t{25} << 20;
  /// Whether a backward pass may leave parameters without a gradient. A parameter that no member
  /// used keeps the gradient it has. If false, a parameter without a gradient is an error.
  bool find_unused_parameters = false;
  /// Whether the first training forward after each backward pass copies the buffers of the first
  /// member to all members.
  bool broadcast_buffers = true;
  /// Names of parameters with sparse gradients. Those of embeddings with the option `sparse` need
  /// not be named.
  std::vector<std::string> sparse_parameters = {};
};

/// While it lives, backward passes do not average gradients. Use it to accumulate gradients over
/// several batches, and do the last batch without it. Both forward and backward must run while it
/// lives.
class [[nodiscard]] WEFT_API NoSync {
 public:
  explicit NoSync(std::shared_ptr<Reducer> reducer);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  const std::shared_ptr<Reducer> reducer_;
};

/// The part of DistributedDataParallel that does not depend on the class of the module.
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
  /// Must be called before every forward.
  void begin_forward();

 private:
  const ProcessGroup group_;
  std::shared_ptr<Reducer> reducer_;
};

/// A module that every member of the group has a replica of. All members construct it at the same
/// time, and get the parameters and buffers of the first member. From then on every backward pass,
/// be it loss.backward() or that of a weft::autograd::Context, ends with gradients that are the
/// averages over all members, in `.grad` or in the context. So replicas that make the same steps
/// stay equal. Gradients are sent while the pass goes on.
///
/// Every member must run the same passes in the same order, and one pass of a module after the
/// other. The module must have its parameters, on their devices, before this object is made.
///
/// If a member is lost, or fails in the middle of a pass, the pass and all later passes end with an
/// error on the other members. The remaining members can make a new group and new replicas.
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
  /// If true, gradients are averaged over the members that still have batches; otherwise their sum
  /// is divided by the number of all members.
  bool average_over_active = false;
};

/// For members with different numbers of batches. Runs `batches`, in which this member trains on
/// all its batches, and then waits for members that have more: this member takes no part in their
/// passes, and they do not wait for it. At the end all members get the parameters and buffers of a
/// member that had the most batches. Every member must call join() with the same modules. If
/// `batches` throws on one member, join() throws on all of them.
WEFT_API void join(const std::vector<DataParallel*>& modules, const std::function<void()>& batches,
                   const JoinOptions& options = {});

}  // namespace weft::nn

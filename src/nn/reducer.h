// Averages the gradients of a module's replicas during backward passes.
//
// A round is one backward pass that reaches the module. Gradients come one by one, a bucket is
// reduced when it is complete, and at the end of the pass the round waits for all buckets. In a
// pass of torch's engine the gradients are in `.grad`; in a pass of a Context they go through a
// LeafStage.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/leaf_hook.h"
#include "autograd/leaf_stage.h"
#include "base/mutex.h"
#include "collective/process_group_state.h"
#include "nn/bucket_plan.h"
#include "nn/reduction.h"
#include "nn/replicas.h"
#include "weft/nn/distributed_data_parallel.h"

namespace weft::autograd {
class ContextState;
}

namespace weft::nn {

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// Checks that all members have the same module, and gives them the values of the first member.
  static std::shared_ptr<Reducer> make(std::shared_ptr<collective::ProcessGroupState> group,
                                       torch::nn::Module& module,
                                       const DataParallelOptions& options);
  Reducer(std::shared_ptr<collective::ProcessGroupState> group, torch::nn::Module& module,
          const DataParallelOptions& options);
  ~Reducer();

  /// Called before every forward. Does nothing while gradients are off. `training`: whether the
  /// module is in training mode; only then are buffers copied from the first member.
  void begin_forward(bool training);

  void pause() { ++paused_; }
  void resume() { --paused_; }

  // For nn::join.
  void begin_join(bool average_over_active);
  void cancel_join();
  Future<int> depart();
  /// All members have departed. Takes over parameters and buffers of the member of rank `last`.
  void end_join(int last);
  /// Fails the channel on all members.
  void give_up(const std::string& cause);

 private:
  class Stage;
  class EndOfBackward;
  enum class Pass { kOfEngine, kOfContext };
  struct Round {
    Pass pass;
    uint64_t owner;  // the number of the Stage or of the EndOfBackward that it belongs to
    BucketProgress progress;
    std::vector<at::Tensor> gradients;  // by parameter
    std::vector<Reducing> reducing;
  };
  using Lock = base::MutexLock;

  void find_parameters(torch::nn::Module& module);
  void add_hooks();
  Stage& stage_in(autograd::ContextState& context);
  bool synchronizes() const { return paused_ == 0; }
  void assume_order() WEFT_REQUIRES(mutex_);
  void plan(const std::vector<size_t>& order) WEFT_REQUIRES(mutex_);
  void prepare_round(bool training);
  void take_over_order(const std::vector<int>& active);

  Round& round_of(Pass pass, uint64_t owner) WEFT_REQUIRES(mutex_);
  void on_gradient(Pass pass, uint64_t owner, size_t parameter, const at::Tensor& gradient);
  std::vector<bool>& used_in(Pass pass) WEFT_REQUIRES(mutex_) {
    return used_[pass == Pass::kOfContext];
  }
  void begin_reductions(Round& round, const std::vector<size_t>& buckets) WEFT_REQUIRES(mutex_);
  void drop_unfinished_round(uint64_t owner, const std::string& cause);
  /// Ends the round: begins the reductions that are left. Returns all reductions, and the
  /// parameters without a gradient unless they are allowed.
  std::pair<std::vector<Reducing>, std::vector<size_t>> finish_round(
      const autograd::LeafStage::Earlier& earlier);
  std::string complain_of(const std::vector<size_t>& missing) const;
  void end_backward(uint64_t owner);

  const std::shared_ptr<collective::ProcessGroupState> group_;
  const std::shared_ptr<collective::Channel> channel_;
  collective::DualChannel dual_;
  const DataParallelOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<Bucketed> bucketed_;
  std::unordered_map<c10::TensorImpl*, size_t> index_;
  std::vector<std::unique_ptr<autograd::LeafHook>> hooks_;
  std::atomic<int> paused_{0};

  std::atomic<uint64_t> last_owner_{0};
  base::Mutex preparing_;  // guards no member: one forward at a time prepares a round

  enum class Order { kAssumed, kSeen, kAgreed };
  base::Mutex mutex_;
  BucketPlan plan_ WEFT_GUARDED_BY(mutex_);
  Order order_ WEFT_GUARDED_BY(mutex_) = Order::kAssumed;
  std::vector<size_t> seen_order_ WEFT_GUARDED_BY(mutex_);
  std::optional<Round> round_ WEFT_GUARDED_BY(mutex_);
  // The parameters of this round in the order in which their gradients came.
  std::vector<size_t> arrivals_ WEFT_GUARDED_BY(mutex_);
  // By kind of pass and parameter: whether there was a gradient since the last round of that kind.
  std::array<std::vector<bool>, 2> used_ WEFT_GUARDED_BY(mutex_);
  // Whether there was a forward since the last round, and whether one of them was in training mode.
  bool prepared_ WEFT_GUARDED_BY(mutex_) = false;
  bool buffers_sent_ WEFT_GUARDED_BY(mutex_) = false;
  bool joining_ WEFT_GUARDED_BY(mutex_) = false;
  bool average_over_active_ WEFT_GUARDED_BY(mutex_) = false;
  std::vector<int> active_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::nn

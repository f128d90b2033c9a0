// Some workers that do the same things at the same time: sums, copies and meetings of all of them.
//
//   weft::ProcessGroup trainers = weft::new_group({"trainer0", "trainer1"});
//   trainers.all_reduce(loss, weft::ReduceOp::kAverage);
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/agent.h"
#include "weft/export.h"
#include "weft/future.h"
#include "weft/worker_info.h"

namespace weft {

namespace collective {
class ProcessGroupState;
}

enum class ReduceOp : uint8_t { kSum, kAverage, kProduct, kMin, kMax };

struct GroupOptions {
  /// How long an operation may take: how far the slowest member may be behind. A member that is
  /// dead or frozen is found out sooner, by Options::dead_after at the latest.
  Timeout timeout = std::chrono::minutes(5);
  /// How long new_group waits for the other members.
  Timeout meeting_timeout = std::chrono::seconds(60);
  /// Whether tensors on GPUs go from one to the other by NCCL, where all members have it and a GPU
  /// of their own. Then, in one operation, all tensors are on GPUs or none; if not, each may be
  /// anywhere.
  bool nccl = true;
};

/// A handle to a group; copies refer to the same one. Every member calls the same operations in the
/// same order, from any thread. A member whose tensors are small does not wait for the others; it
/// can be some thousand operations ahead of the slowest member. If the members call operations that
/// do not match, or a member is lost, the operations of all members end with an error, and the
/// group with them: later operations throw the same error at once. The members that are left may
/// make a new group. After an error tensors may have any value.
///
/// A group uses the connections and the threads of the agent, so it needs no address of its own,
/// and calls go on beside it. Tensors must not be changed while an operation on them is going on.
/// Tensors on GPUs travel by NCCL, which has connections of its own, or else through the CPU.
class WEFT_API ProcessGroup {
 public:
  /// This worker's rank in the group: its place among the names it was made with.
  int rank() const;
  int size() const;
  const std::vector<WorkerInfo>& members() const;

  /// In place, with the same result, bit for bit, on every member.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  Future<void> all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;

  /// Gives `tensor` the value it has on the member of rank `root`.
  void broadcast(const at::Tensor& tensor, int root) const;
  Future<void> broadcast_async(const at::Tensor& tensor, int root) const;

  /// The tensors of all members, by rank. Their shapes and types may differ.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) const;
  Future<std::vector<at::Tensor>> all_gather_async(const at::Tensor& tensor) const;

  /// Takes one tensor for each member; returns the reduction of those that are for this one.
  at::Tensor reduce_scatter(const std::vector<at::Tensor>& tensors,
                            ReduceOp op = ReduceOp::kSum) const;
  Future<at::Tensor> reduce_scatter_async(const std::vector<at::Tensor>& tensors,
                                          ReduceOp op = ReduceOp::kSum) const;

  /// Returns when every member has come here.
  void barrier() const;
  Future<void> barrier_async() const;

  /// For layers above.
  const std::shared_ptr<collective::ProcessGroupState>& group() const { return group_; }
  explicit ProcessGroup(std::shared_ptr<collective::ProcessGroupState> group)
      : group_(std::move(group)) {}

 private:
  std::shared_ptr<collective::ProcessGroupState> group_;
};

/// A group of these workers, of which this one must be one (nobody named: of all members). Each of
/// them calls it with the same names in the same order, from one thread at a time. Throws kTimeout,
/// naming those who did not, and kInvalidArgument, naming what differs.
WEFT_API ProcessGroup new_group(const std::vector<std::string>& names = {},
                                const GroupOptions& options = {});
WEFT_API ProcessGroup new_group(Agent& agent, const std::vector<std::string>& names = {},
                                const GroupOptions& options = {});

}  // namespace weft

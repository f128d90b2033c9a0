// Groups of workers that do collective operations together: all_reduce, broadcast, all_gather,
// reduce_scatter, barrier.
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

/// How the members of a group exchange what an all_reduce reduces.
enum class AllReduceWay : uint8_t {
  kAutomatic,  // by size and number of members
  kDirect,     // each sends all it has to each
  kDoubling,  // each exchanges with one partner after another, as many steps as log2 of the members
  kShares,    // each reduces a share of the elements and sends the result to all
};

struct GroupOptions {
  /// How long an operation may take. It begins when this member calls it, so this is also how far
  /// behind the slowest member may be. A member that is dead or frozen is noticed sooner, after
  /// Options::dead_after at the latest.
  Timeout timeout = std::chrono::minutes(5);
  /// How long new_group waits for the other members.
  Timeout meeting_timeout = std::chrono::seconds(60);
  /// Whether operations move tensors from GPU to GPU by NCCL, if every member has NCCL and a GPU
  /// that no other member uses. If true, the tensors that the members give to one operation must
  /// all be on GPUs or all on the CPU. If false, each member's tensor may be anywhere, and all
  /// operations go through the CPU.
  bool nccl = true;
  /// The way of all_reduce on the CPU, the same on all members. The automatic choice is right for
  /// members on one host, and unless something was measured for others too.
  AllReduceWay all_reduce = AllReduceWay::kAutomatic;
};

/// A handle to a group; copies refer to the same group. Every member must call the same operations
/// in the same order, from any thread. A member that does not wait for the others may run ahead of
/// them: a member keeps up to 4,096 chunks for operations that it has not begun, and beyond that
/// the group fails with kLimitExceeded.
///
/// If the members disagree about an operation, or if a member is lost, the group fails: all
/// operations end with an error on all members, and later ones throw the same error at once. The
/// remaining members can make a new group. After an error tensors may have any value.
///
/// A group uses the connections and the threads of the agent, so it needs no address of its own,
/// and calls go on beside it. The program must not change a tensor while an operation on it is
/// going on. Tensors on GPUs travel by NCCL, which has connections of its own, or through the CPU.
class WEFT_API ProcessGroup {
 public:
  /// This worker's rank in the group: its index in the names that were given to new_group().
  int rank() const;
  int size() const;
  const std::vector<WorkerInfo>& members() const;

  /// Reduces in place; every member gets the same result, bit for bit.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  Future<void> all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;

  /// Gives `tensor` the value it has on the member of rank `root`.
  void broadcast(const at::Tensor& tensor, int root) const;
  Future<void> broadcast_async(const at::Tensor& tensor, int root) const;

  /// Returns the tensors of all members, by rank. Their shapes and types may differ.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) const;
  Future<std::vector<at::Tensor>> all_gather_async(const at::Tensor& tensor) const;

  /// `tensors` has one tensor for each member. Returns the reduction of those for this member.
  at::Tensor reduce_scatter(const std::vector<at::Tensor>& tensors,
                            ReduceOp op = ReduceOp::kSum) const;
  Future<at::Tensor> reduce_scatter_async(const std::vector<at::Tensor>& tensors,
                                          ReduceOp op = ReduceOp::kSum) const;

  /// Returns when every member has called it.
  void barrier() const;
  Future<void> barrier_async() const;

  /// For layers above.
  const std::shared_ptr<collective::ProcessGroupState>& group() const { return group_; }
  explicit ProcessGroup(std::shared_ptr<collective::ProcessGroupState> group)
      : group_(std::move(group)) {}

 private:
  std::shared_ptr<collective::ProcessGroupState> group_;
};

/// Makes a group of these workers, or of all members if `names` is empty. This worker must be one
/// of them. Each of them calls new_group() with the same names in the same order, from one thread
/// at a time. Throws kTimeout, naming the workers that did not call it, and kInvalidArgument,
/// naming what differs.
WEFT_API ProcessGroup new_group(const std::vector<std::string>& names = {},
                                const GroupOptions& options = {});
WEFT_API ProcessGroup new_group(Agent& agent, const std::vector<std::string>& names = {},
                                const GroupOptions& options = {});

}  // namespace weft

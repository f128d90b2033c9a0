// SPDX-License-Identifier: BSD-3-Clause
#include "weft/process_group.h"

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "collective/c10d/c10d_comm.h"
#include "collective/flat_tensor.h"
#include "collective/process_group_state.h"
#include "collective/process_groups.h"
#include "weft/c10d.h"

namespace weft {

using collective::Channel;
using collective::DualChannel;
using collective::FlatTensor;
using collective::Kind;
using collective::Outcome;
using collective::Signature;
using collective::signature_of;
using collective::Tensors;

namespace {

// The value that `f` makes of the outcome. `f` runs on a thread of the I/O crew, so it may block.
template <typename T, typename F>
Future<T> result_of(const Future<Outcome>& outcome,
                    std::shared_ptr<collective::ProcessGroupState> group, F f) {
  return outcome.then(
      [group = std::move(group), f = std::move(f)](const Outcome& value) -> T { return f(value); });
}

}  // namespace

int ProcessGroup::rank() const { return group_->rank(); }
int ProcessGroup::size() const { return group_->size(); }
const std::vector<WorkerInfo>& ProcessGroup::members() const { return group_->members(); }

namespace {

// An operation of all members that changes one tensor in place.
struct InPlace {
  FlatTensor flat;
  Future<Outcome> outcome;
};

InPlace begin_all_reduce(collective::ProcessGroupState& group, const at::Tensor& tensor,
                         ReduceOp op) {
  const Signature signature = signature_of(Kind::kAllReduce, {tensor}, op);
  const DualChannel dual = group.dual(tensor);
  const std::vector<int>& all = dual.channel()->everybody();
  const FlatTensor flat(tensor, dual.is_direct(Kind::kAllReduce, {tensor}, all, op));
  const auto folding = collective::folding_of(op, all.size());
  return {flat, dual.all_reduce(signature, {flat.values()}, all, folding)};
}

InPlace begin_broadcast(collective::ProcessGroupState& group, const at::Tensor& tensor, int root) {
  group.check_rank(root);
  const Signature signature = signature_of(Kind::kBroadcast, {tensor}, ReduceOp::kSum, root);
  const DualChannel dual = group.dual(tensor);
  const std::vector<int>& all = dual.channel()->everybody();
  const FlatTensor flat(tensor, dual.is_direct(Kind::kBroadcast, {tensor}, all));
  return {flat, dual.broadcast(signature, {flat.values()}, all)};
}

void end_all_reduce(const FlatTensor& flat, const Outcome& outcome) {
  const c10::AutoGradMode off(false);
  // A small reduction on the CPU leaves the tensor alone and has its result in the outcome.
  if (!outcome.chunks.empty()) flat.values().copy_(outcome.chunks[0].at(0));
  flat.bring_back();
}

}  // namespace

Future<void> ProcessGroup::all_reduce_async(const at::Tensor& tensor, ReduceOp op) const {
  const InPlace begun = begin_all_reduce(*group_, tensor, op);
  return result_of<void>(begun.outcome, group_, [flat = begun.flat](const Outcome& outcome) {
    end_all_reduce(flat, outcome);
  });
}

// Not all_reduce_async().wait(): that would take another thread between the one that brings the
// last chunk and this one.
void ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  const InPlace begun = begin_all_reduce(*group_, tensor, op);
  end_all_reduce(begun.flat, begun.outcome.wait());
}

Future<void> ProcessGroup::broadcast_async(const at::Tensor& tensor, int root) const {
  const InPlace begun = begin_broadcast(*group_, tensor, root);
  return result_of<void>(begun.outcome, group_,
                         [flat = begun.flat](const Outcome&) { flat.bring_back(); });
}

Future<std::vector<at::Tensor>> ProcessGroup::all_gather_async(const at::Tensor& tensor) const {
  const Signature signature = signature_of(Kind::kAllGather, {tensor});
  return result_of<std::vector<at::Tensor>>(group_->dual(tensor).all_gather(signature, tensor),
                                            group_,
                                            [device = tensor.device()](const Outcome& outcome) {
                                              std::vector<at::Tensor> all;
                                              for (const Tensors& each : outcome.chunks)
                                                all.push_back(each.at(0).to(device));
                                              return all;
                                            });
}

Future<at::Tensor> ProcessGroup::reduce_scatter_async(const std::vector<at::Tensor>& tensors,
                                                      ReduceOp op) const {
  if (tensors.size() != static_cast<size_t>(size())) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("reduce_scatter of {} tensors in a group of {} members", tensors.size(),
                            size()));
  }
  const Signature signature = signature_of(Kind::kReduceScatter, tensors, op);
  const auto folding = collective::folding_of(op, static_cast<size_t>(size()));
  return result_of<at::Tensor>(
      group_->dual(tensors.front()).reduce_scatter(signature, tensors, folding), group_,
      [own = tensors[static_cast<size_t>(rank())].detach()](const Outcome& outcome) {
        return outcome.chunks.at(0).at(0).view(own.sizes()).to(own.device());
      });
}

namespace {

Future<Outcome> begin_barrier(Channel& channel) {
  return channel.start(signature_of(Kind::kBarrier, {}), channel.everybody(),
                       collective::barrier_algorithm(channel.place_in(channel.everybody())));
}

}  // namespace

Future<void> ProcessGroup::barrier_async() const {
  return result_of<void>(begin_barrier(group_->channel()), group_, [](const Outcome&) {});
}

void ProcessGroup::broadcast(const at::Tensor& tensor, int root) const {
  broadcast_async(tensor, root).wait();
}
std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor) const {
  return all_gather_async(tensor).wait();
}
at::Tensor ProcessGroup::reduce_scatter(const std::vector<at::Tensor>& tensors, ReduceOp op) const {
  return reduce_scatter_async(tensors, op).wait();
}
void ProcessGroup::barrier() const { begin_barrier(group_->channel()).wait(); }

ProcessGroup new_group(Agent& agent, const std::vector<std::string>& names,
                       const GroupOptions& options) {
  auto& groups = collective::ProcessGroups::of(*detail::AgentAccess::core(agent));
  return ProcessGroup(groups.make(agent, names, options));
}

ProcessGroup new_group(const std::vector<std::string>& names, const GroupOptions& options) {
  return new_group(current_agent(), names, options);
}

ProcessGroup wrap_group(Agent& agent, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                        const std::vector<std::string>& names, const GroupOptions& options) {
  auto& groups = collective::ProcessGroups::of(*detail::AgentAccess::core(agent));
  return ProcessGroup(groups.make(agent, names, options, collective::c10d_carrier(group)));
}

ProcessGroup wrap_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                        const std::vector<std::string>& names, const GroupOptions& options) {
  return wrap_group(current_agent(), group, names, options);
}

}  // namespace weft

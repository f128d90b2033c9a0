// SPDX-License-Identifier: BSD-3-Clause
#include "collective/line.h"

#include <algorithm>
#include <utility>

namespace weft::collective {

Line::Line(std::shared_ptr<Channel> channel, std::shared_ptr<DeviceLane> lane)
    : channel_(std::move(channel)), lane_(std::move(lane)) {}

bool Line::is_direct(Kind kind, const Tensors& tensors, const std::vector<int>& ranks,
                     ReduceOp op) const {
  return lane_ && ranks.size() == channel_->everybody().size() && lane_->takes(kind, op, tensors);
}

Future<Outcome> Line::all_reduce(const Terms& terms, const Tensors& tensors,
                                 const std::vector<int>& ranks, const Folding& folding) const {
  if (is_direct(Kind::kAllReduce, tensors, ranks, static_cast<ReduceOp>(terms.op))) {
    return lane_->start(terms, {.kind = Kind::kAllReduce, .tensors = tensors, .folding = folding});
  }
  return channel_->start(terms, ranks,
                         all_reduce_course(channel_->place_in(ranks), tensors, folding));
}

Future<Outcome> Line::broadcast(const Terms& terms, const Tensors& tensors,
                                const std::vector<int>& ranks) const {
  const auto root = std::lower_bound(ranks.begin(), ranks.end(), terms.root) - ranks.begin();
  const auto place = static_cast<size_t>(root);
  if (is_direct(Kind::kBroadcast, tensors, ranks)) {
    return lane_->start(terms, {.kind = Kind::kBroadcast, .tensors = tensors, .root = place});
  }
  return channel_->start(terms, ranks, broadcast_course(channel_->place_in(ranks), tensors, place));
}

Future<Outcome> Line::all_gather(const Terms& terms, const at::Tensor& tensor) const {
  const std::vector<int>& ranks = channel_->everybody();
  if (is_direct(Kind::kAllGather, {tensor}, ranks)) return lane_->start_all_gather(terms, tensor);
  return channel_->start(terms, ranks,
                         all_gather_course(channel_->place_in(ranks), {tensor.detach().cpu()}));
}

Future<Outcome> Line::reduce_scatter(const Terms& terms, const Tensors& tensors,
                                     const Folding& folding) const {
  const std::vector<int>& ranks = channel_->everybody();
  if (is_direct(Kind::kReduceScatter, tensors, ranks, static_cast<ReduceOp>(terms.op))) {
    return lane_->start_reduce_scatter(terms, tensors, folding);
  }
  Tensors flat;
  for (const at::Tensor& each : tensors) flat.push_back(each.detach().cpu().contiguous().view(-1));
  return channel_->start(
      terms, ranks, reduce_scatter_course(channel_->place_in(ranks), std::move(flat), folding));
}

}  // namespace weft::collective

// SPDX-License-Identifier: BSD-3-Clause
#include "collective/dual_channel.h"

#include <algorithm>
#include <utility>

#include "collective/neighbours.h"

namespace weft::collective {

DualChannel::DualChannel(std::shared_ptr<Channel> channel, AllReduceWay way,
                         std::shared_ptr<DeviceChannel> device_channel)
    : channel_(std::move(channel)), way_(way), device_(std::move(device_channel)) {}

bool DualChannel::is_direct(Kind kind, const Tensors& tensors, const std::vector<int>& ranks,
                            ReduceOp op) const {
  return device_ && ranks.size() == channel_->everybody().size() &&
         device_->takes(kind, op, tensors);
}

Future<Outcome> DualChannel::all_reduce(const Signature& signature, const Tensors& tensors,
                                        const std::vector<int>& ranks,
                                        const Folding& folding) const {
  if (is_direct(Kind::kAllReduce, tensors, ranks, static_cast<ReduceOp>(signature.op))) {
    return device_->start(signature,
                          {.kind = Kind::kAllReduce, .tensors = tensors, .folding = folding});
  }
  return channel_->start(signature, ranks,
                         all_reduce_algorithm(channel_->place_in(ranks), tensors, folding, way_,
                                              &tensors_for_neighbours));
}

Future<Outcome> DualChannel::broadcast(const Signature& signature, const Tensors& tensors,
                                       const std::vector<int>& ranks) const {
  const auto root = std::lower_bound(ranks.begin(), ranks.end(), signature.root) - ranks.begin();
  const auto place = static_cast<size_t>(root);
  if (is_direct(Kind::kBroadcast, tensors, ranks)) {
    return device_->start(signature, {.kind = Kind::kBroadcast, .tensors = tensors, .root = place});
  }
  return channel_->start(signature, ranks,
                         broadcast_algorithm(channel_->place_in(ranks), tensors, place));
}

Future<Outcome> DualChannel::all_gather(const Signature& signature,
                                        const at::Tensor& tensor) const {
  const std::vector<int>& ranks = channel_->everybody();
  if (is_direct(Kind::kAllGather, {tensor}, ranks))
    return device_->start_all_gather(signature, tensor);
  return channel_->start(signature, ranks,
                         all_gather_algorithm(channel_->place_in(ranks), {tensor.detach().cpu()}));
}

Future<Outcome> DualChannel::reduce_scatter(const Signature& signature, const Tensors& tensors,
                                            const Folding& folding) const {
  const std::vector<int>& ranks = channel_->everybody();
  if (is_direct(Kind::kReduceScatter, tensors, ranks, static_cast<ReduceOp>(signature.op))) {
    return device_->start_reduce_scatter(signature, tensors, folding);
  }
  Tensors flat;
  for (const at::Tensor& each : tensors) flat.push_back(each.detach().cpu().contiguous().view(-1));
  return channel_->start(
      signature, ranks,
      reduce_scatter_algorithm(channel_->place_in(ranks), std::move(flat), folding));
}

}  // namespace weft::collective

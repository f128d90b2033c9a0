// A channel with, if the members have connected their accelerators, a device channel beside it.
// Every operation takes the one or the other.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <vector>

#include "collective/channels/channel.h"
#include "collective/devices/device_channel.h"

namespace weft::collective {

class DualChannel {
 public:
  DualChannel(std::shared_ptr<Channel> channel, AllReduceWay way,
              std::shared_ptr<DeviceChannel> device_channel = nullptr);

  const std::shared_ptr<Channel>& channel() const { return channel_; }

  /// Whether an operation of `ranks` on these tensors goes from accelerator to accelerator. If not,
  /// the caller has to copy them to the CPU.
  bool is_direct(Kind kind, const Tensors& tensors, const std::vector<int>& ranks,
                 ReduceOp op = ReduceOp::kSum) const;

  // These two change flat tensors in place. Exception: a small all_reduce on the CPU leaves the
  // tensors alone, and Outcome::chunks[0] has the result.
  Future<Outcome> all_reduce(const Signature& signature, const Tensors& tensors,
                             const std::vector<int>& ranks, const Folding& folding) const;
  Future<Outcome> broadcast(const Signature& signature, const Tensors& tensors,
                            const std::vector<int>& ranks) const;

  // In these two all members take part. all_gather: the outcome has the tensors of all, by place.
  // reduce_scatter: the outcome has the reduction of the tensors for this member's place.
  Future<Outcome> all_gather(const Signature& signature, const at::Tensor& tensor) const;
  Future<Outcome> reduce_scatter(const Signature& signature, const Tensors& tensors,
                                 const Folding& folding) const;

 private:
  std::shared_ptr<Channel> channel_;
  AllReduceWay way_;  // of all_reduce on the CPU
  std::shared_ptr<DeviceChannel> device_;
};

}  // namespace weft::collective

// Operations of a channel whose tensors stay on accelerators.
//
// The channel goes on doing what it does for others: the members meet in every operation, which
// tells them if they disagree, and wait for each other at its end, which tells them who is lost.
// In between, a thread has the accelerators do the work, in the order of the channel, and gives it
// up when the channel has failed.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "collective/channels/channel.h"
#include "collective/devices/device_comm.h"
#include "collective/devices/device_worker.h"

namespace weft::collective {

class DeviceChannel {
 public:
  /// Meets the other members of the channel, which all do the same. Null if one of them cannot
  /// use it, or two have the same device.
  static std::shared_ptr<DeviceChannel> meet(const std::shared_ptr<Channel>& channel,
                                             at::Device device, std::unique_ptr<DeviceComm> comm);
  ~DeviceChannel();
  DeviceChannel(const DeviceChannel&) = delete;

  /// Whether the channel can do such an operation. `tensors` are not empty.
  bool takes(Kind kind, ReduceOp op, const Tensors& tensors) const;

  /// Starts an operation on flat tensors that takes() accepts, with all members; in place.
  Future<Outcome> start(const Signature& signature, DeviceOperation work);
  /// Gathers one tensor that takes() accepts. The outcome has all, by place.
  Future<Outcome> start_all_gather(const Signature& signature, const at::Tensor& tensor);
  /// Reduces tensors that takes() accepts, one for each place. The outcome has the reduction for
  /// this place.
  Future<Outcome> start_reduce_scatter(const Signature& signature, const Tensors& tensors,
                                       const Folding& folding);

 private:
  using MakeAlgorithm = std::function<std::unique_ptr<Algorithm>(Place, DeviceWorker::JobRef)>;

  DeviceChannel(std::shared_ptr<Channel> channel, at::Device device,
                std::unique_ptr<DeviceComm> comm);
  void connect(const std::string& invitation);
  Future<Outcome> enter(Signature signature, const MakeAlgorithm& make_algorithm);

  const std::shared_ptr<Channel> channel_;
  const at::Device device_;
  const std::shared_ptr<DeviceWorker> worker_;
  std::thread thread_;
  base::Mutex starting_;  // one at a time, so that the worker has them in the channel's order
};

}  // namespace weft::collective

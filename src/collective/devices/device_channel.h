// Operations of a channel whose tensors stay on accelerators.
//
// Every operation also goes through the channel. At its beginning the members exchange chunks, so
// they notice if they disagree; at its end they wait for each other, so they notice if one is lost.
// In between, the thread of the DeviceWorker has the accelerator do the work, in the order of the
// channel. If the channel fails, that thread gives the work up.
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
  /// Connects the accelerators of all members of the channel; every member must call this at the
  /// same point of the channel's order. Returns null if `comm` cannot be used by a member, or if
  /// the members' comms do not fit together (two of them have the same device, for example).
  static std::shared_ptr<DeviceChannel> meet(const std::shared_ptr<Channel>& channel,
                                             at::Device device, std::unique_ptr<DeviceComm> comm);
  /// For a `comm` whose members have met already.
  static std::shared_ptr<DeviceChannel> of_met(const std::shared_ptr<Channel>& channel,
                                               at::Device device, std::unique_ptr<DeviceComm> comm);
  ~DeviceChannel();
  DeviceChannel(const DeviceChannel&) = delete;

  /// Whether this channel can do the operation with these tensors, of which there is at least one.
  bool takes(Kind kind, ReduceOp op, const Tensors& tensors) const;

  // The tensors must be such that takes() is true. All members take part.
  /// Flat tensors; the operation changes them in place.
  Future<Outcome> start(const Signature& signature, DeviceOperation work);
  /// The outcome has the tensors of all members, by place.
  Future<Outcome> start_all_gather(const Signature& signature, const at::Tensor& tensor);
  /// `tensors` has one for each place. The outcome has the reduction of those for this place.
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
  base::Mutex starting_;  // held by enter(), so that jobs are in the order of the channel
};

}  // namespace weft::collective

// Members with device channels between devices that the test plays, beside a channel of a group.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>

#include <gtest/gtest.h>

#include "collective/devices/device_channel.h"
#include "collective/dual_channel.h"
#include "unit/collective/fake_device_comm.h"
#include "unit/collective/process_group_scene.h"

namespace weft::device_lane_test {

using collective::Channel;
using collective::DeviceChannel;
using collective::DualChannel;
using collective::Kind;
using collective::Outcome;
using collective::signature_of;
using collective::Tensors;
using collective::test::eventually;
using collective::test::Fabric;
using collective::test::kBound;
using test::error_of;
using test::expect_full;

// What a member has.
struct Member {
  const int rank;
  const std::shared_ptr<Channel> channel;
  std::shared_ptr<DeviceChannel> device_channel = {};

  Future<Outcome> all_reduce(const Tensors& tensors, ReduceOp op = ReduceOp::kSum) const {
    const auto size = static_cast<size_t>(channel->size());
    return device_channel->start(signature_of(Kind::kAllReduce, tensors, op),
                                 {.kind = Kind::kAllReduce,
                                  .tensors = tensors,
                                  .folding = collective::folding_of(op, size)});
  }
  Future<Outcome> broadcast(const Tensors& tensors, int root) const {
    return device_channel->start(
        signature_of(Kind::kBroadcast, tensors, ReduceOp::kSum, root),
        {.kind = Kind::kBroadcast, .tensors = tensors, .root = static_cast<size_t>(root)});
  }
  Future<Outcome> all_gather(const at::Tensor& tensor) const {
    return device_channel->start_all_gather(signature_of(Kind::kAllGather, {tensor}), tensor);
  }
  Future<Outcome> reduce_scatter(const Tensors& tensors, ReduceOp op = ReduceOp::kSum) const {
    return device_channel->start_reduce_scatter(
        signature_of(Kind::kReduceScatter, tensors, op), tensors,
        collective::folding_of(op, static_cast<size_t>(channel->size())));
  }
  // The same channel without the device channel.
  Future<Outcome> all_reduce_on_cpu(const Tensors& tensors) const {
    return DualChannel(channel, AllReduceWay::kAutomatic)
        .all_reduce(signature_of(Kind::kAllReduce, tensors), tensors, channel->everybody(), {});
  }
  Future<Outcome> barrier() const {
    return channel->start(signature_of(Kind::kBarrier, {}), channel->everybody(),
                          collective::barrier_algorithm(channel->place_in(channel->everybody())));
  }
};

inline Outcome in_time(const Future<Outcome>& outcome) {
  if (!outcome.wait_for(kBound)) throw std::runtime_error("no outcome in time");
  return outcome.wait();
}

/// Others may have told this member before it begins: then `begin` throws.
template <typename F>
Error error_in_time(const F& begin) {
  return error_of([&] { in_time(begin()); });
}

class DeviceChannelScene : public test::ProcessGroupScene {
 protected:
  using Body = std::function<void(Member&)>;

  DeviceChannelScene() : ProcessGroupScene({"a", "b", "c"}) {}

  /// Each member in its own thread, with a channel that all have until all are done.
  void on_channels(const Body& body, Timeout timeout = kBound) {
    std::atomic<size_t> done{0};
    in_group(
        [&](const ProcessGroup& group, int rank) {
          Member member{rank, group.group()->open_channel()};
          EXPECT_NO_THROW(body(member));
          wait_for_all(done);
          member.device_channel.reset();
          group.group()->close_channel(*member.channel);
          EXPECT_TRUE(eventually([&] { return of(member).alive == 0; }))
              << "a member still has the device channel";
        },
        {.timeout = timeout});
  }
  /// The same with a device channel. `body` runs when all members have theirs: if it ran earlier,
  /// it could end the meeting of the others.
  void on_device_channels(const Body& body, Timeout timeout = kBound) {
    std::atomic<size_t> met{0};
    on_channels(
        [&](Member& member) {
          member.device_channel = meet(member);
          ASSERT_TRUE(member.device_channel);
          wait_for_all(met);
          body(member);
        },
        timeout);
  }
  void wait_for_all(std::atomic<size_t>& count) const {
    ++count;
    EXPECT_TRUE(eventually([&] { return count == agents.size(); }));
  }
  std::shared_ptr<DeviceChannel> meet(const Member& member) const {
    return DeviceChannel::meet(member.channel, at::kCPU, fabric->comm(member.rank));
  }
  Fabric::Member& of(const Member& member) const {
    return fabric->members[static_cast<size_t>(member.rank)];
  }

  std::shared_ptr<Fabric> fabric = std::make_shared<Fabric>(3);
};

}  // namespace weft::device_lane_test

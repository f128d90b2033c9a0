// Members with lanes between devices that the test plays, beside a channel of a group.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>

#include <gtest/gtest.h>

#include "collective/devices/device_lane.h"
#include "collective/line.h"
#include "unit/collective/fake_device_comm.h"
#include "unit/collective/process_group_scene.h"

namespace weft::device_lane_test {

using collective::Channel;
using collective::DeviceLane;
using collective::Kind;
using collective::Line;
using collective::Outcome;
using collective::Tensors;
using collective::terms_of;
using collective::test::eventually;
using collective::test::Fabric;
using collective::test::kBound;
using test::error_of;
using test::expect_full;

// What a member has.
struct Member {
  const int rank;
  const std::shared_ptr<Channel> channel;
  std::shared_ptr<DeviceLane> lane = {};

  Future<Outcome> all_reduce(const Tensors& tensors, ReduceOp op = ReduceOp::kSum) const {
    const auto size = static_cast<size_t>(channel->size());
    return lane->start(terms_of(Kind::kAllReduce, tensors, op),
                       {.kind = Kind::kAllReduce,
                        .tensors = tensors,
                        .folding = collective::folding_of(op, size)});
  }
  Future<Outcome> broadcast(const Tensors& tensors, int root) const {
    return lane->start(
        terms_of(Kind::kBroadcast, tensors, ReduceOp::kSum, root),
        {.kind = Kind::kBroadcast, .tensors = tensors, .root = static_cast<size_t>(root)});
  }
  Future<Outcome> all_gather(const at::Tensor& tensor) const {
    return lane->start_all_gather(terms_of(Kind::kAllGather, {tensor}), tensor);
  }
  Future<Outcome> reduce_scatter(const Tensors& tensors, ReduceOp op = ReduceOp::kSum) const {
    return lane->start_reduce_scatter(
        terms_of(Kind::kReduceScatter, tensors, op), tensors,
        collective::folding_of(op, static_cast<size_t>(channel->size())));
  }
  // The same channel without the lane.
  Future<Outcome> all_reduce_on_cpu(const Tensors& tensors) const {
    return Line(channel).all_reduce(terms_of(Kind::kAllReduce, tensors), tensors,
                                    channel->everybody(), {});
  }
  Future<Outcome> barrier() const {
    return channel->start(terms_of(Kind::kBarrier, {}), channel->everybody(),
                          collective::barrier_course(channel->place_in(channel->everybody())));
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

class DeviceLaneScene : public test::ProcessGroupScene {
 protected:
  using Part = std::function<void(Member&)>;

  DeviceLaneScene() : ProcessGroupScene({"a", "b", "c"}) {}

  /// Each member in its own thread, with a channel that all have until all are done.
  void on_channels(const Part& part, Timeout timeout = kBound) {
    std::atomic<size_t> done{0};
    in_group(
        [&](const ProcessGroup& group, int rank) {
          Member member{rank, group.group()->open_channel()};
          EXPECT_NO_THROW(part(member));
          wait_for_all(done);
          member.lane.reset();
          group.group()->close_channel(*member.channel);
          EXPECT_TRUE(eventually([&] { return of(member).alive == 0; })) << "somebody has it";
        },
        {.timeout = timeout});
  }
  /// The same with a lane, once all have theirs: what one does then can end the others' meeting.
  void on_lanes(const Part& part, Timeout timeout = kBound) {
    std::atomic<size_t> met{0};
    on_channels(
        [&](Member& member) {
          member.lane = meet(member);
          ASSERT_TRUE(member.lane);
          wait_for_all(met);
          part(member);
        },
        timeout);
  }
  void wait_for_all(std::atomic<size_t>& count) const {
    ++count;
    EXPECT_TRUE(eventually([&] { return count == agents.size(); }));
  }
  std::shared_ptr<DeviceLane> meet(const Member& member) const {
    return DeviceLane::meet(member.channel, at::kCPU, fabric->comm(member.rank));
  }
  Fabric::Member& of(const Member& member) const {
    return fabric->members[static_cast<size_t>(member.rank)];
  }

  std::shared_ptr<Fabric> fabric = std::make_shared<Fabric>(3);
};

}  // namespace weft::device_lane_test

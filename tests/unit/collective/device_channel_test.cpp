// Device channels between accelerators that the test plays: which members meet, what they compute,
// in which order, and what happens if they disagree.
// SPDX-License-Identifier: BSD-3-Clause
#include "collective/devices/device_channel.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/collective/device_channel_scene.h"

namespace weft::device_lane_test {
namespace {

using testing::HasSubstr;

class DeviceChannelTest : public DeviceChannelScene {};

// --- meeting ---------------------------------------------------------------------------------

TEST_F(DeviceChannelTest, MeetsIfAllFit) {
  fabric->members[0].identity = std::string("with\0zeros\xff", 11);

  on_device_channels([&](const Member& member) {
    EXPECT_TRUE(of(member).connecting);
    EXPECT_TRUE(member.device_channel->takes(Kind::kAllReduce, ReduceOp::kSum, {at::ones({2})}));
    EXPECT_FALSE(member.device_channel->takes(Kind::kAllReduce, ReduceOp::kMin, {at::ones({2})}));
    EXPECT_FALSE(member.device_channel->takes(Kind::kAllReduce, ReduceOp::kSum,
                                              {at::ones({2}), at::ones({2}, at::kDouble)}));
    EXPECT_FALSE(member.device_channel->takes(Kind::kAllGather, ReduceOp::kSum,
                                              {at::ones({2}).to_sparse()}));
    EXPECT_FALSE(member.device_channel->takes(Kind::kAllGather, ReduceOp::kSum, {at::Tensor()}));
  });

  for (const auto& each : fabric->members) EXPECT_EQ(each.alive, 0u);
}

class DeviceChannelThatCannotBe : public DeviceChannelTest {
 protected:
  void expect_none() {
    on_channels([&](const Member& member) {
      EXPECT_FALSE(meet(member));
      in_time(member.barrier());
    });
    for (const auto& each : fabric->members) EXPECT_FALSE(each.connecting);
  }
};

TEST_F(DeviceChannelThatCannotBe, BecauseACardIsEmpty) {
  fabric->members[1].identity = "";
  expect_none();
}

TEST_F(DeviceChannelThatCannotBe, BecauseTheyDoNotFit) {
  for (auto& each : fabric->members) each.fits = false;
  expect_none();
}

// --- results ---------------------------------------------------------------------------------

TEST_F(DeviceChannelTest, Reduces) {
  on_device_channels([](const Member& member) {
    const auto given = [&] { return at::full({5}, member.rank + 1.0, at::kFloat); };
    const Tensors sums{given(), at::empty({0}), given().narrow(0, 0, 2)}, averages{given()};

    in_time(member.all_reduce(sums));
    in_time(member.all_reduce(averages, ReduceOp::kAverage));

    expect_full(sums[0], 6);
    expect_full(sums[2], 6);
    EXPECT_TRUE(averages[0].allclose(at::full({5}, 2.0)));
  });
}

TEST_F(DeviceChannelTest, BroadcastsFromEverybody) {
  on_device_channels([](const Member& member) {
    for (int root = 0; root < 3; ++root) {
      const Tensors tensors{at::full({4}, 10 + member.rank), at::full({2}, 20 + member.rank)};

      in_time(member.broadcast(tensors, root));

      expect_full(tensors[0], 10 + root);
      expect_full(tensors[1], 20 + root);
    }
  });
}

TEST_F(DeviceChannelTest, GathersDifferentShapesAndTypes) {
  // The first does not lie in memory as its indices go.
  const Tensors all{at::arange(6, at::kFloat).view({2, 3}).t(), at::full({}, 7, at::kLong),
                    at::zeros({0, 4}, at::kBool)};
  const at::Tensor before = all[0].clone();

  on_device_channels([&](const Member& member) {
    const at::Tensor& own = all[static_cast<size_t>(member.rank)];

    const Outcome outcome = in_time(member.all_gather(own));

    ASSERT_EQ(outcome.chunks.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor& got = outcome.chunks[i].at(0);
      EXPECT_EQ(got.scalar_type(), all[i].scalar_type());
      EXPECT_EQ(got.sizes(), all[i].sizes());
      EXPECT_TRUE(at::equal(got, all[i])) << i;
    }
    outcome.chunks[static_cast<size_t>(member.rank)][0].zero_();
  });

  EXPECT_TRUE(at::equal(all[0], before)) << "the result is a copy";
  expect_full(all[1], 7);
}

TEST_F(DeviceChannelTest, ReducesAndScatters) {
  for (const bool is_average : {false, true}) {
    fabric = std::make_shared<Fabric>(3);
    on_device_channels([&](const Member& member) {
      const double value = member.rank;
      Tensors given{at::full({2, 3}, value), at::empty({0}), at::full({4}, value)};
      given[0] = given[0].t();
      Tensors before;
      for (const at::Tensor& each : given) before.push_back(each.clone());

      const Outcome outcome =
          in_time(member.reduce_scatter(given, is_average ? ReduceOp::kAverage : ReduceOp::kSum));

      const at::Tensor& own = before[static_cast<size_t>(member.rank)];
      EXPECT_TRUE(
          outcome.chunks.at(0).at(0).view(own.sizes()).allclose(own * 0 + (is_average ? 1 : 3)));
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(given[i], before[i])) << "given";
    });
  }
}

TEST_F(DeviceChannelTest, OfOneMember) {
  const auto alone = std::make_shared<Fabric>(1);
  const ProcessGroup group = new_group(agents[0], {"a"});
  Member member{0, group.group()->open_channel()};
  member.device_channel = DeviceChannel::meet(member.channel, at::kCPU, alone->comm(0));
  ASSERT_TRUE(member.device_channel);
  const at::Tensor tensor = at::full({3}, 5.0);

  in_time(member.all_reduce({tensor}, ReduceOp::kAverage));
  in_time(member.broadcast({tensor}, 0));

  expect_full(tensor, 5);
  expect_full(in_time(member.all_gather(tensor)).chunks.at(0).at(0), 5);
  expect_full(in_time(member.reduce_scatter({tensor})).chunks.at(0).at(0), 5);
}

// --- order -----------------------------------------------------------------------------------

// Two hundred by four threads, none of which is over before all members have begun all.
TEST_F(DeviceChannelTest, EverybodyHasTheSameOrder) {
  constexpr size_t kOperations = 200;
  std::atomic<size_t> started{0};
  fabric->held = true;

  on_device_channels([&](const Member& member) {
    std::mutex in_order;
    Tensors tensors;
    std::vector<Future<Outcome>> outcomes;
    const auto start_some = [&] {
      for (;;) {
        const std::lock_guard lock(in_order);
        const size_t i = tensors.size();
        if (i == kOperations) return;
        tensors.push_back(at::full({static_cast<int64_t>(i)}, member.rank + 1.0));
        outcomes.push_back(i % 3 == 0 ? member.broadcast({tensors[i]}, static_cast<int>(i % 2))
                                      : member.all_reduce({tensors[i]}));
        ++started;
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back(start_some);
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(eventually([&] { return started == 3 * kOperations; }));
    for (const auto& outcome : outcomes) EXPECT_FALSE(outcome.ready() && fabric->held);
    fabric->held = false;

    for (size_t i = 0; i < kOperations; ++i) {
      in_time(outcomes[i]);
      expect_full(tensors[i], i % 3 == 0 ? static_cast<double>(i % 2 + 1) : 6);
    }
  });

  EXPECT_EQ(fabric->members[0].order.size(), kOperations);
  for (const auto& each : fabric->members) EXPECT_EQ(each.order, fabric->members[0].order);
}

TEST_F(DeviceChannelTest, OperationsOnTheCpuGoOnBesideIt) {
  on_device_channels([&](const Member& member) {
    const DualChannel dual(member.channel, AllReduceWay::kAutomatic, member.device_channel);
    const auto& all = member.channel->everybody();
    Tensors tensors;
    std::vector<Future<Outcome>> outcomes;
    for (int64_t i = 0; i < 60; ++i) {
      // Those of doubles it does not take; there are few of them, and many.
      const auto type = i % 2 == 0 ? at::kFloat : at::kDouble;
      tensors.push_back(at::full({i % 7 == 1 ? 40'000 : i + 1}, member.rank + 1, type));
      EXPECT_EQ(dual.is_direct(Kind::kAllReduce, {tensors.back()}, all), type == at::kFloat);
      outcomes.push_back(dual.all_reduce(signature_of(Kind::kAllReduce, {tensors.back()}),
                                         {tensors.back()}, all, {}));
      if (i % 10 == 0) outcomes.push_back(member.barrier());
    }

    size_t next = 0;
    for (size_t i = 0; i < 60; ++i) {
      const Outcome outcome = in_time(outcomes[next++]);
      expect_full(outcome.chunks.empty() ? tensors[i] : outcome.chunks[0].at(0), 6);
      if (i % 10 == 0) in_time(outcomes[next++]);
    }
    EXPECT_EQ(of(member).begun, 30u);
  });
}

// --- disagreement ----------------------------------------------------------------------------

class DeviceChannelDisagreement : public DeviceChannelScene {
 protected:
  /// What the second does is something else than what the others do.
  void expect_told(const std::function<Future<Outcome>(const Member&)>& other,
                   const std::string& text) {
    on_device_channels([&](const Member& member) {
      const Error error = error_in_time([&] {
        return member.rank == 1 ? other(member) : member.all_reduce({at::ones({4}), at::ones({2})});
      });

      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
      EXPECT_THAT(error.message(), HasSubstr(text));
      EXPECT_EQ(error_of([&] { member.all_reduce({at::ones({4})}); }).code(),
                ErrorCode::kInvalidArgument);
    });
    EXPECT_EQ(fabric->begun(), 0u) << "the devices must not begin it";
  }
};

TEST_F(DeviceChannelDisagreement, AboutTheReduction) {
  expect_told(
      [](const Member& member) {
        return member.all_reduce({at::ones({4}), at::ones({2})}, ReduceOp::kAverage);
      },
      "b calls all_reduce (average)");
}

TEST_F(DeviceChannelDisagreement, AboutTheKind) {
  expect_told(
      [](const Member& member) {
        return member.broadcast({at::ones({4}), at::ones({2})}, 1);
      },
      "b calls broadcast");
}

TEST_F(DeviceChannelDisagreement, AboutSizesWhoseSumIsTheSame) {
  expect_told(
      [](const Member& member) {
        return member.all_reduce({at::ones({2}), at::ones({4})});
      },
      "elements");
}

TEST_F(DeviceChannelDisagreement, AboutTheWay) {
  expect_told(
      [](const Member& member) {
        return member.all_reduce_on_cpu({at::ones({4}), at::ones({2})});
      },
      "on accelerators");
}

TEST_F(DeviceChannelDisagreement, EndsWhatIsGoingOnToo) {
  fabric->held = true;

  on_device_channels([&](const Member& member) {
    const Future<Outcome> good = member.all_reduce({at::ones({2})});
    EXPECT_TRUE(eventually([&] { return fabric->begun() == 3; }));
    const Error error =
        error_in_time([&] { return member.all_reduce({at::ones({member.rank == 1 ? 3 : 2})}); });

    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
    EXPECT_EQ(error_in_time([&] { return good; }).message(), error.message());
  });

  EXPECT_EQ(fabric->begun(), 3u);
}

}  // namespace
}  // namespace weft::device_lane_test

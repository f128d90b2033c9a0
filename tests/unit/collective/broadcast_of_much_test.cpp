// Broadcasts of so much that the root waits until the others have begun.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/collective/channel_world.h"

namespace weft::broadcast_of_much_test {
namespace {

using collective::broadcast_algorithm;
using collective::Channel;
using collective::Kind;
using collective::Outcome;
using collective::signature_of;
using collective::Tensors;
using collective::test::Packet;
using collective::test::World;
using testing::HasSubstr;

constexpr int64_t kMebi = 1 << 18;  // elements of four bytes
constexpr int kMany = 100;

void expect_all(const at::Tensor& tensor, double value) {
  EXPECT_TRUE(tensor.eq(value).all().item<bool>()) << "in place of " << value;
}

class BroadcastOfMuch : public testing::TestWithParam<int> {
 protected:
  BroadcastOfMuch() {
    world.on_send = [this] { ++sent; };
  }

  int root() const { return GetParam(); }
  Future<Outcome> begin(int rank, const at::Tensor& tensor) { return begin(rank, tensor, root()); }
  Future<Outcome> begin(int rank, const at::Tensor& tensor, int from) {
    Channel& channel = world[static_cast<size_t>(rank)];
    return channel.start(signature_of(Kind::kBroadcast, {tensor}, ReduceOp::kSum, from),
                         channel.everybody(),
                         broadcast_algorithm(channel.place_in(channel.everybody()), {tensor},
                                             static_cast<size_t>(from)));
  }
  std::vector<int> others() const {
    std::vector<int> ranks{0, 1, 2};
    std::erase(ranks, root());
    return ranks;
  }
  /// Runs until nothing moves. Says how many chunks with tensors went from the root to `rank`.
  size_t run_and_count_to(int rank) {
    size_t count = 0;
    while (!world.quiet()) {
      const auto has_tensors = [&](const Packet& packet) {
        return packet.to == rank && !packet.chunk.tensors.empty();
      };
      const auto before = std::count_if(world.packets.begin(), world.packets.end(), has_tensors);
      world.step();
      const auto after = std::count_if(world.packets.begin(), world.packets.end(), has_tensors);
      if (after > before) count += static_cast<size_t>(after - before);
    }
    return count;
  }

  World world{3};
  size_t sent = 0;
};

INSTANTIATE_TEST_SUITE_P(FromEach, BroadcastOfMuch, testing::Values(0, 1, 2));

TEST_P(BroadcastOfMuch, WaitsForTheLastToBegin) {
  const at::Tensor given = at::full({kMebi}, 7.0);
  const auto all = others();
  world.repeat_one_in = 1'000'000;

  const auto of_root = begin(root(), given);
  EXPECT_EQ(run_and_count_to(all[0]), 0u);
  const at::Tensor first = at::empty({kMebi});
  const auto of_first = begin(all[0], first);
  EXPECT_EQ(run_and_count_to(all[0]), 0u) << "another has not begun";
  EXPECT_FALSE(of_root.ready() || of_first.ready());
  const at::Tensor second = at::empty({kMebi});
  const auto of_second = begin(all[1], second);
  EXPECT_EQ(run_and_count_to(all[1]), 1u);

  ASSERT_TRUE(of_root.ready() && of_first.ready() && of_second.ready());
  expect_all(first, 7);
  expect_all(second, 7);
}

TEST_P(BroadcastOfMuch, NothingIsKeptForWhoIsLate) {
  const auto all = others();
  std::vector<Future<Outcome>> of_root, of_first;
  std::vector<at::Tensor> given, got;
  for (int i = 0; i < kMany; ++i) {
    given.push_back(at::full({kMebi}, i, at::kInt));
    got.push_back(at::empty({kMebi}, at::kInt));
    of_root.push_back(begin(root(), given.back()));
    of_first.push_back(begin(all[0], got.back()));
  }
  EXPECT_EQ(run_and_count_to(all[1]), 0u);

  // As it begins them, it gets them, one after the other.
  for (size_t i = 0; i < kMany; ++i) {
    const at::Tensor tensor = at::empty({kMebi}, at::kInt);
    const auto outcome = begin(all[1], tensor);
    EXPECT_GE(run_and_count_to(all[1]), 1u);
    ASSERT_TRUE(outcome.ready() && of_root[i].ready() && of_first[i].ready());
    EXPECT_TRUE(i + 1 == kMany || !of_root[i + 1].ready());
    expect_all(tensor, static_cast<double>(i));
    expect_all(got[i], static_cast<double>(i));
  }
  EXPECT_TRUE(world.packets.empty());
}

TEST_P(BroadcastOfMuch, WhoHasBegunFirstGetsIt) {
  const auto all = others();
  std::vector<at::Tensor> got;
  std::vector<Future<Outcome>> outcomes;
  for (const int rank : all) {
    got.push_back(at::empty({kMebi}));
    outcomes.push_back(begin(rank, got.back()));
  }
  world.run();
  for (const auto& each : outcomes) EXPECT_FALSE(each.ready());

  outcomes.push_back(begin(root(), at::full({kMebi}, 3.0)));
  world.run();

  for (const auto& each : outcomes) EXPECT_TRUE(each.ready());
  for (const auto& each : got) expect_all(each, 3);
}

TEST_P(BroadcastOfMuch, WhoDoesNotBeginIsNamedByAll) {
  const auto all = others();
  begin(root(), at::ones({kMebi}));
  begin(all[0], at::ones({kMebi}));
  world.run();

  world.clock.advance(collective::test::kTimeout + std::chrono::seconds(1));
  for (const auto& channel : world.channels) channel->missing(world.clock.now());
  world.run();

  for (const auto& channel : world.channels) {
    ASSERT_TRUE(channel->failure());
    EXPECT_EQ(channel->failure()->code(), ErrorCode::kTimeout);
    EXPECT_THAT(channel->failure()->message(), HasSubstr("missing: m" + std::to_string(all[1])));
  }
}

TEST_P(BroadcastOfMuch, WhoTakesAnotherForTheRootIsTold) {
  const auto all = others();
  for (const int rank : all) begin(rank, at::ones({kMebi}));
  begin(root(), at::ones({kMebi}), all[0]);
  world.run();

  for (const auto& channel : world.channels) {
    ASSERT_TRUE(channel->failure());
    EXPECT_EQ(channel->failure()->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(channel->failure()->message(), HasSubstr("disagree"));
  }
}

// No more than what may wait for who has not begun.
TEST_P(BroadcastOfMuch, FewAreSentAtOnce) {
  begin(root(), at::ones({16 * 1024}));
  EXPECT_EQ(sent, 2u);
  begin(root(), at::ones({16 * 1024 + 1}));
  world.run();
  EXPECT_EQ(world.watched, 2u);
  for (const auto& channel : world.channels) EXPECT_FALSE(channel->failure());
}

TEST(BroadcastOfMuchCourse, WhatTheRootSendsHasToFit) {
  for (const Tensors& wrong :
       {Tensors{}, Tensors{at::ones({kMebi - 1})}, Tensors{at::Tensor()},
        Tensors{at::ones({kMebi}), at::ones({1})}, Tensors{at::ones({kMebi}, at::kLong)},
        Tensors{at::ones({kMebi / 2, 2})}}) {
    const auto algorithm = broadcast_algorithm({1, 2}, {at::ones({kMebi})}, 0);
    algorithm->begin();
    algorithm->go_on(0, {{}, {}});
    EXPECT_THROW(algorithm->go_on(1, {wrong, {}}), Error);
  }
}

}  // namespace
}  // namespace weft::broadcast_of_much_test

// What a channel does with chunks that come early, late, twice or from nowhere.
// SPDX-License-Identifier: BSD-3-Clause
#include "collective/channels/channel.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/collective/channel_world.h"

namespace weft::collective::test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kDepartures = uint64_t{1} << 63;

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() { world.repeat_one_in = 1'000'000; }

  Future<Outcome> barrier(size_t rank) {
    Channel& channel = world[rank];
    return channel.start(signature_of(Kind::kBarrier, {}), channel.everybody(),
                         barrier_algorithm(channel.place_in(channel.everybody())));
  }
  Future<Outcome> reduce(size_t rank, const at::Tensor& tensor) {
    Channel& channel = world[rank];
    return channel.start(
        signature_of(Kind::kAllReduce, {tensor}), channel.everybody(),
        all_reduce_algorithm(channel.place_in(channel.everybody()), {tensor}, Folding{}));
  }
  Future<Outcome> broadcast_first(size_t rank, const at::Tensor& tensor) {
    Channel& channel = world[rank];
    return channel.start(signature_of(Kind::kBroadcast, {tensor}, ReduceOp::kSum, 0),
                         channel.everybody(), broadcast_algorithm({rank, 2}, {tensor}, 0));
  }
  /// Both have begun, and the first one's tensor, which is much, is on its way, as the only packet.
  Future<Outcome> send_much(const at::Tensor& tensor, const at::Tensor& received) {
    const auto sent = broadcast_first(0, tensor);
    broadcast_first(1, received);
    const auto is_first_phase = [](const Packet& packet) { return packet.chunk.phase == 0; };
    while (!std::all_of(world.packets.begin(), world.packets.end(), std::not_fn(is_first_phase)) ||
           world.packets.empty()) {
      world.step();
    }
    return sent;
  }
  static Chunk chunk(Kind kind, uint64_t number, uint64_t epoch = 0) {
    Chunk chunk;
    chunk.epoch = epoch;
    chunk.number = number;
    chunk.signature = Signature{.kind = static_cast<uint8_t>(kind)};
    return chunk;
  }
  /// What channel 0 has failed with, once it got what is on its way.
  ErrorCode failure() {
    world.run();
    return world[0].failure() ? world[0].failure()->code() : ErrorCode{};
  }

  World world{2};
};

TEST_F(ChannelTest, IsWatchedFromTheStartAlsoIfItSendsNothing) {
  Channel& channel = world[1];
  channel.start(signature_of(Kind::kBroadcast, {at::ones({1})}, ReduceOp::kSum, 0),
                channel.everybody(), broadcast_algorithm({1, 2}, {at::ones({1})}, 0));

  EXPECT_TRUE(world.packets.empty());
  EXPECT_EQ(world.watched, 1u);
}

TEST_F(ChannelTest, TellsWhomItWaitsForAndSinceWhen) {
  const base::Time began = world.clock.now();
  const auto met = barrier(0);
  world.clock.advance(std::chrono::seconds(1));

  EXPECT_TRUE(world[0].busy());
  EXPECT_TRUE(world[0].missing(began - std::chrono::nanoseconds(1)).empty());
  const auto missing = world[0].missing(began);
  ASSERT_EQ(missing.size(), 1);
  EXPECT_EQ(missing.begin()->first, 1);

  world.run();
  barrier(1);
  world.run();
  EXPECT_TRUE(met.ready());
  EXPECT_FALSE(world[0].busy());
  EXPECT_TRUE(world[0].missing(world.clock.now()).empty());
}

TEST_F(ChannelTest, TheFirstFailureCounts) {
  const auto met = barrier(0);
  world[0].fail(Error(ErrorCode::kPeerLost, "first"));
  world[0].fail(Error(ErrorCode::kTimeout, "second"));
  world[0].fail_and_tell(Error(ErrorCode::kTimeout, "third"));

  EXPECT_EQ(met.error()->message(), "first");
  EXPECT_EQ(failure(), ErrorCode::kPeerLost);
  EXPECT_THROW(barrier(0), Error);
  EXPECT_FALSE(world[1].failure()) << "the second was told";
}

// What was sent may fail to encode, or memory to be had.
TEST_F(ChannelTest, WhatCannotBeSentEndsTheOperationEverywhere) {
  world.on_send = [] { throw std::runtime_error("it does not go"); };
  const auto met = barrier(0);

  ASSERT_TRUE(met.ready());
  EXPECT_THAT(met.error()->message(), HasSubstr("it does not go"));
  world.run();
  EXPECT_TRUE(world[1].failure());
}

TEST_F(ChannelTest, DisagreementAboutWhatIsOverIsNoticed) {
  for (int i = 0; i < 3; ++i) {
    barrier(0);
    barrier(1);
    world.run();
  }

  world[0].on_chunk(1, chunk(Kind::kBarrier, 2));  // sent again
  EXPECT_EQ(failure(), ErrorCode{});
  world[0].on_chunk(1, chunk(Kind::kAllGather, 2));
  EXPECT_EQ(failure(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(world[1].failure()->message(), HasSubstr("m0 calls barrier, m1 calls all_gather"));
}

TEST_F(ChannelTest, PartsThatNobodySendsAreRefused) {
  const std::pair<int, Chunk> impossible[] = {
      {0, chunk(Kind::kBarrier, 0)},                  // from itself
      {2, chunk(Kind::kBarrier, 0)},                  // from nobody
      {-1, chunk(Kind::kBarrier, 0)},                 //
      {1, chunk(Kind::kBarrier, 0, 2)},               // two epochs ahead
      {1, chunk(Kind::kDeparture, 0)},                // with a number of another kind
      {1, chunk(Kind::kBarrier, kDepartures)},        //
      {1, chunk(Kind::kDeparture, kDepartures + 1)},  // of another epoch
      {1, chunk(Kind::kDeparture, kDepartures, 1)},   //
      {1, chunk(Kind::kDeparture, ~uint64_t{0}, 1)},  //
  };
  for (const auto& [from, wrong] : impossible) {
    World alone(2);
    alone[0].on_chunk(from, wrong);
    ASSERT_TRUE(alone[0].failure()) << from << " " << wrong.number << " " << wrong.epoch;
    EXPECT_EQ(alone[0].failure()->code(), ErrorCode::kBadMessage);
  }
}

TEST_F(ChannelTest, APhaseThatThereIsNotIsRefused) {
  for (const bool is_early : {false, true}) {
    World alone(2);
    Chunk wrong = chunk(Kind::kBarrier, 0);
    wrong.phase = 9;
    if (is_early) alone[0].on_chunk(1, wrong);
    try {
      alone[0].start(signature_of(Kind::kBarrier, {}), {0, 1}, barrier_algorithm({0, 2}));
    } catch (const Error&) {
      EXPECT_TRUE(is_early);
    }
    if (!is_early) alone[0].on_chunk(1, wrong);
    EXPECT_TRUE(alone[0].failure());
  }
}

TEST_F(ChannelTest, PartsThatDoNotFitEndTheOperation) {
  const at::Tensor tensor = at::ones({3});
  const auto sum = reduce(0, tensor);
  Chunk wrong = chunk(Kind::kAllReduce, 0);
  wrong.signature = signature_of(Kind::kAllReduce, {tensor});
  wrong.tensors = {at::ones({4})};
  world[0].on_chunk(1, wrong);

  ASSERT_TRUE(sum.ready());
  EXPECT_EQ(sum.error()->code(), ErrorCode::kBadMessage);
  EXPECT_THAT(sum.error()->message(), HasSubstr("operation 0, all_reduce (sum) of 1 tensor"));
}

// An all_reduce of so much goes by shares: in phase 0 members give what is to be reduced, in phase
// 1 what they have reduced.
TEST_F(ChannelTest, AGatheredShareIsWhereItBelongsAsSoonAsItComes) {
  constexpr int64_t kMuch = 400'000;
  const at::Tensor mine = at::ones({kMuch}), others = at::ones({kMuch});
  const auto sum = reduce(0, mine);
  const auto theirs = reduce(1, others);
  const auto is_gathered = [](const Packet& packet) { return packet.chunk.phase == 1; };
  // Member 1 has reduced its share; member 0 has got nothing yet.
  for (;;) {
    const auto found = std::find_if(world.packets.begin(), world.packets.end(), is_gathered);
    if (found != world.packets.end()) {
      ASSERT_EQ(found->from, 1);
      world.deliver(static_cast<size_t>(found - world.packets.begin()));
      break;
    }
    const auto to_1 = std::find_if(world.packets.begin(), world.packets.end(),
                                   [](const Packet& packet) { return packet.to == 1; });
    if (!world.tasks.empty()) {
      world.run_task();
    } else {
      ASSERT_NE(to_1, world.packets.end());
      world.deliver(static_cast<size_t>(to_1 - world.packets.begin()));
    }
  }

  EXPECT_EQ(mine[kMuch - 1].item<float>(), 2);
  EXPECT_FALSE(sum.ready());
  world.run();
  EXPECT_TRUE(at::equal(mine, at::full({kMuch}, 2.0F)));
  EXPECT_TRUE(at::equal(others, mine));
  EXPECT_TRUE(sum.ready() && theirs.ready());
}

TEST_F(ChannelTest, AGatheredShareThatDoesNotFitEndsTheOperation) {
  const at::Tensor tensor = at::ones({400'000});
  const auto sum = reduce(0, tensor);
  Chunk wrong = chunk(Kind::kAllReduce, 0);
  wrong.signature = signature_of(Kind::kAllReduce, {tensor});
  wrong.phase = 1;
  wrong.tensors = {at::ones({4})};
  world.run();
  world[0].on_chunk(1, wrong);

  ASSERT_TRUE(sum.ready());
  EXPECT_EQ(sum.error()->code(), ErrorCode::kBadMessage);
}

TEST_F(ChannelTest, AGatheredShareOfWhatHasNotBegunIsRefused) {
  const at::Tensor tensor = at::ones({400'000});
  Chunk wrong = chunk(Kind::kAllReduce, 0);
  wrong.signature = signature_of(Kind::kAllReduce, {tensor});
  wrong.phase = 1;
  world[0].on_chunk(1, wrong);

  try {
    reduce(0, tensor);
    FAIL() << "began";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadMessage);
    EXPECT_THAT(error.message(), HasSubstr("m1 sends chunk 1, which answers what m0 has not sent"));
  }
}

// What runs while a chunk is used is up to the test.
class UsesAtOnce final : public Algorithm {
 public:
  explicit UsesAtOnce(std::function<void(size_t)> on_use)
      : Algorithm({0, 3}, 1), on_use_(std::move(on_use)) {}
  Sendings begin() override { return {}; }
  bool expects(uint8_t, size_t from) const override { return from != 0; }
  bool uses_at_once(uint8_t) const override { return true; }
  void use(uint8_t, size_t from, const Tensors&) override { on_use_(from); }
  Sendings go_on(uint8_t, std::vector<Tensors>) override { return {}; }

 private:
  const std::function<void(size_t)> on_use_;
};

class ChunksInUse : public ChannelTest {
 protected:
  Future<Outcome> start(std::function<void(size_t)> on_use) {
    return three[0].start(signature(), three[0].everybody(),
                          std::make_unique<UsesAtOnce>(std::move(on_use)));
  }
  void bring(int from) {
    Chunk some = chunk(Kind::kAllReduce, 0);
    some.signature = signature();
    three[0].on_chunk(from, some);
  }
  static Signature signature() { return signature_of(Kind::kAllReduce, {at::ones({3})}); }

  World three{3};
};

TEST_F(ChunksInUse, AreNotTakenFromTheThreadThatUsesThemByAFailure) {
  std::optional<Future<Outcome>> outcome;
  int used = 0;
  outcome = start([&](size_t from) {
    ++used;
    if (from == 1) return bring(2);  // another thread's, which ends first
    three[0].fail(Error(ErrorCode::kPeerLost, "gone"));
    EXPECT_FALSE(outcome->ready()) << "the tensors are in use";
  });
  bring(1);

  EXPECT_EQ(used, 2);
  ASSERT_TRUE(outcome->ready());
  EXPECT_EQ(outcome->error()->code(), ErrorCode::kPeerLost);
}

TEST_F(ChunksInUse, AreUsedOnceAlsoIfTheyComeAgainMeanwhile) {
  int used = 0;
  const auto outcome = start([&](size_t from) {
    if (++used == 1) bring(static_cast<int>(from));
  });
  bring(1);
  bring(1);
  EXPECT_EQ(used, 1);
  EXPECT_FALSE(outcome.ready());
  bring(2);

  EXPECT_EQ(used, 2);
  EXPECT_TRUE(outcome.ready());
  EXPECT_FALSE(outcome.error());
}

// If there is no memory to say so, the member that sent the chunk is told.
TEST_F(ChunksInUse, AreAsIfTheyHadNotComeIfEvenTheFailureFails) {
  const auto outcome = start([&](size_t) { throw 7; });
  EXPECT_THROW(bring(1), int);
  EXPECT_FALSE(outcome.ready());

  three[0].fail(Error(ErrorCode::kPeerLost, "gone"));
  EXPECT_TRUE(outcome.ready());
}

// Such an operation would otherwise end when a thread has time for it, whatever its deadline.
TEST_F(ChannelTest, AnOperationThatNoThreadHasBegunFailsAtOnce) {
  const auto sum = reduce(0, at::ones({400'000}));
  ASSERT_EQ(world.tasks.size(), 1u);

  world[0].fail(Error(ErrorCode::kPeerLost, "gone"));
  EXPECT_TRUE(sum.ready());
  world.run();
  EXPECT_TRUE(world.packets.empty());
}

TEST_F(ChannelTest, AMemberMayBeAheadButNotForEver) {
  for (uint64_t number = 0; number < 4096; ++number) {
    world[0].on_chunk(1, chunk(Kind::kBarrier, number));
  }
  EXPECT_EQ(failure(), ErrorCode{});

  world[0].on_chunk(1, chunk(Kind::kBarrier, 4096));
  EXPECT_EQ(failure(), ErrorCode::kLimitExceeded);
  EXPECT_THAT(world[0].failure()->message(), HasSubstr("m1 is too far ahead of m0"));
}

// What is still on its way when an operation is over at others must not change.
TEST_F(ChannelTest, IsNotOverBeforeAllHaveWhatItSent) {
  const at::Tensor tensor = at::ones({100'000});
  const at::Tensor received = at::zeros({100'000});
  const auto sent = send_much(tensor, received);

  EXPECT_FALSE(sent.ready());
  EXPECT_EQ(world.packets.at(0).chunk.tensors.at(0).data_ptr(), tensor.data_ptr()) << "no copy";
  world.deliver(0);
  EXPECT_FALSE(sent.ready());
  world.run();
  EXPECT_TRUE(sent.ready());
  EXPECT_TRUE(at::equal(received, tensor));
}

TEST_F(ChannelTest, IsFinishedWhenAllHasArrived) {
  const auto sent = send_much(at::ones({100'000}), at::zeros({100'000}));
  EXPECT_FALSE(sent.ready());

  std::move(world.packets.at(0).arrived)();

  EXPECT_TRUE(sent.ready());
  world.packets.clear();
  world.tasks.clear();
}

TEST_F(ChannelTest, WhoWaitsIsToldIfThereIsNoMemoryForTheResult) {
  class WithoutResult final : public Algorithm {
   public:
    explicit WithoutResult(Place place) : Algorithm(place, 1) {}
    Sendings begin() override { return {}; }
    bool expects(uint8_t, size_t) const override { return false; }
    Sendings go_on(uint8_t, std::vector<Tensors>) override { return {}; }
    std::vector<Tensors> take_result() override { throw std::bad_alloc(); }
  };
  Channel& channel = world[0];

  const auto outcome =
      channel.start(signature_of(Kind::kBarrier, {}), channel.everybody(),
                    std::make_unique<WithoutResult>(channel.place_in(channel.everybody())));

  ASSERT_TRUE(outcome.ready());
  EXPECT_THROW(outcome.wait(), std::bad_alloc);
  EXPECT_FALSE(channel.busy());
}

// --- joining ---------------------------------------------------------------------------------

TEST_F(ChannelTest, WhoHasJoinedDoesNothingMoreUntilAllHave) {
  const auto first = world[0].depart();
  EXPECT_THROW(barrier(0), Error);
  EXPECT_THROW(world[0].depart(), Error);
  EXPECT_FALSE(world[0].failure());

  const auto second = world[1].depart();
  world.run();
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
  const auto met = barrier(0);
  barrier(1);
  world.run();
  EXPECT_TRUE(met.ready());
}

TEST_F(ChannelTest, MembersMustDivideByTheSameNumberWhileSomeHaveJoined) {
  const auto one = world[0].agree_on_members(Divisor::kPresent);
  const auto other = world[1].agree_on_members();
  world.run();

  ASSERT_TRUE(one.ready() && other.ready());
  EXPECT_EQ(failure(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(world[0].failure()->message(), HasSubstr("averages over the active members"));
}

TEST_F(ChannelTest, AnOperationThatNeedsWhoHasJoinedFails) {
  const auto last = world[1].depart();
  const auto met = barrier(0);
  world.run();

  ASSERT_TRUE(met.ready());
  EXPECT_EQ(met.error()->code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(met.error()->message(), HasSubstr("m1 has joined and does not take part"));
  EXPECT_TRUE(last.error());
}

// Membership rounds come to a member that then departs and never answers them.
TEST_F(ChannelTest, ManyEpochsLeaveNothingBehind) {
  for (int epoch = 0; epoch < 5000; ++epoch) {
    const auto membership = world[0].agree_on_members();
    world.run();
    const auto first = world[1].depart();
    world.run();
    ASSERT_TRUE(membership.ready());
    const Outcome outcome = membership.wait();
    ASSERT_EQ(outcome.present, std::vector<int>{0});
    const auto last = world[0].depart();
    world.run();
    ASSERT_TRUE(last.ready() && first.ready()) << epoch;
    ASSERT_EQ(last.wait(), 0) << epoch;
  }
}

// Said again after the others have begun anew.
TEST_F(ChannelTest, ADepartureThatComesAgainDoesNoHarm) {
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    const auto first = world[0].depart();
    const auto second = world[1].depart();
    world.run();
    ASSERT_TRUE(first.ready() && second.ready());
    for (uint64_t old = 0; old <= epoch; ++old) {
      world[0].on_chunk(1, chunk(Kind::kDeparture, kDepartures + old, old));
    }
    const auto met = barrier(0);
    barrier(1);
    world.run();
    EXPECT_TRUE(met.ready() && !met.error());
  }
}

}  // namespace
}  // namespace weft::collective::test

// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/io/link.h"

#include <algorithm>
#include <thread>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "transport/loopback/loopback_transport.h"
#include "transport/poller.h"

namespace weft::rpc {
namespace {

using State = Link::State;
using wire::FrameKind;

class LinkTest : public testing::Test {
 protected:
  LinkTest() {
    const auto network = std::make_shared<transport::LoopbackNetwork>();
    const auto transport = network->transport();
    const auto listener = transport->listen("");
    const auto pool = std::make_shared<wire::ReceivePool>(0);
    here_ = detail::make_ref<Link>(transport->connect(listener->address()), pool);
    there_ = detail::make_ref<Link>(listener->accept().connection, pool);
  }

  static wire::FrameHeader ping(uint64_t id) { return {FrameKind::kPing, 0, 0, 0, id}; }

  // The ids of all frames that have arrived.
  std::vector<uint64_t> arrived() {
    std::vector<uint64_t> ids;
    while (there_->receive() == State::kFine) {
      while (there_->next_frame()) ids.push_back(there_->frame().header.id);
    }
    return ids;
  }

  detail::Ref<Link> here_, there_;
};

TEST_F(LinkTest, FramesArriveInOrder) {
  for (uint64_t id = 0; id < 5; ++id) here_->queue(ping(id));
  EXPECT_TRUE(here_->has_queued());

  EXPECT_EQ(here_->flush(), State::kFine);

  EXPECT_FALSE(here_->has_queued());
  EXPECT_EQ(arrived(), (std::vector<uint64_t>{0, 1, 2, 3, 4}));
}

TEST_F(LinkTest, LeavesWhatIsTooMuchToTheNextFlush) {
  for (uint64_t id = 0; id < 5; ++id) here_->queue(ping(id));

  EXPECT_EQ(here_->flush(5 * 24), State::kBlocked);
  EXPECT_TRUE(here_->blocked());
  EXPECT_TRUE(arrived().empty());

  EXPECT_EQ(here_->flush(5 * 24 + 1), State::kFine);
  EXPECT_FALSE(here_->blocked());
  EXPECT_EQ(arrived(), (std::vector<uint64_t>{0, 1, 2, 3, 4}));
}

TEST_F(LinkTest, RemembersThatAFlushWasDeferredUntilThereIsOne) {
  EXPECT_FALSE(here_->has_deferred());
  here_->queue(ping(1));
  here_->defer_flush();
  EXPECT_TRUE(here_->has_deferred());

  here_->flush();

  EXPECT_FALSE(here_->has_deferred());
  EXPECT_EQ(arrived(), (std::vector<uint64_t>{1}));
}

TEST_F(LinkTest, TellsWhereAFrameEndsInTheStream) {
  const Link::Position first = here_->queue(ping(1));
  const Link::Position second =
      here_->queue({FrameKind::kGoodbye}, std::as_bytes(std::span("why", 3)));
  EXPECT_EQ(here_->sent_bytes(), 0u);
  EXPECT_FALSE(here_->may_have_sent(first));

  here_->flush();

  EXPECT_EQ(first.byte, 24u);
  EXPECT_EQ(second.byte, 24u + 24u + 3u);
  EXPECT_EQ(here_->sent_bytes(), second.byte);
  EXPECT_TRUE(here_->has_sent(second));
  EXPECT_TRUE(here_->may_have_sent(second));
}

// The system takes some of a large frame; what is urgent goes behind the piece it is in.
TEST_F(LinkTest, UrgentFramesOvertakeALargeOne) {
  EXPECT_EQ(here_->lane_for_urgent(), Link::Lane::kNormal);
  Encoder value;
  value.tensor(at::arange(1 << 20));
  const Link::Position bulk = here_->queue({FrameKind::kReply, 0, 0, 0, 9}, {}, value);
  const Link::Position small = here_->queue(ping(10));
  EXPECT_EQ(here_->flush(), State::kBlocked);
  ASSERT_EQ(here_->lane_for_urgent(), Link::Lane::kUrgent);

  const Link::Position urgent = here_->queue(ping(11), Link::Lane::kUrgent);
  EXPECT_FALSE(here_->may_have_sent(urgent));
  std::vector<uint64_t> ids;
  bool bulk_sent_first = false;
  while (ids.size() < 3) {
    ASSERT_NE(there_->receive(), State::kBroken);
    while (there_->next_frame()) ids.push_back(there_->frame().header.id);
    if (!here_->has_sent(urgent) && here_->has_sent(bulk)) bulk_sent_first = true;
    here_->flush();
  }

  EXPECT_EQ(ids, (std::vector<uint64_t>{11, 9, 10}));
  EXPECT_FALSE(bulk_sent_first);
  EXPECT_TRUE(here_->has_sent(small));
  EXPECT_EQ(here_->unsent_bytes(), 0u);
}

TEST_F(LinkTest, FramesWaitBehindTheFirstUntilItIsOpen) {
  Encoder hello;
  here_->queue_first({FrameKind::kHello, 0, 0, 0, wire::kHelloMagic}, hello);
  here_->queue(ping(1));

  here_->flush();
  EXPECT_EQ(arrived(), (std::vector<uint64_t>{wire::kHelloMagic}));
  here_->open();
  here_->queue(ping(2));
  here_->flush();

  EXPECT_EQ(arrived(), (std::vector<uint64_t>{1, 2}));
}

// A call of a lane may leave out the name of its function if an earlier one of that lane had it. So
// a frame must not be told that it is urgent and then wait in the normal lane.
TEST_F(LinkTest, NothingIsUrgentBeforeItIsOpen) {
  Encoder much;
  much.tensor(at::arange(1 << 20));
  here_->queue_first(ping(1), Encoder());
  here_->queue(ping(2), {}, much);
  EXPECT_EQ(here_->lane_for_urgent(), Link::Lane::kNormal);

  here_->open();

  EXPECT_EQ(here_->lane_for_urgent(), Link::Lane::kUrgent);
}

TEST_F(LinkTest, OpenedBeforeItsFirstFrameIsWrittenKeepsTheOrder) {
  Encoder hello;
  here_->queue_first({FrameKind::kHello, 0, 0, 0, wire::kHelloMagic}, hello);
  here_->queue(ping(1));

  here_->open();
  here_->queue(ping(2));
  here_->flush();

  EXPECT_EQ(arrived(), (std::vector<uint64_t>{wire::kHelloMagic, 1, 2}));
}

TEST_F(LinkTest, GoesOnWhereItBlocked) {
  Encoder value;
  const at::Tensor tensor = at::arange(1 << 20);
  value.tensor(tensor);
  here_->queue({FrameKind::kReply, 0, 0, 0, 9}, {}, value);
  here_->queue(ping(10));
  EXPECT_EQ(here_->flush(), State::kBlocked);
  EXPECT_TRUE(here_->blocked());

  std::vector<at::Tensor> tensors;
  std::vector<uint64_t> ids;
  while (ids.size() < 2) {
    const State state = there_->receive();
    ASSERT_NE(state, State::kBroken);
    while (there_->next_frame()) {
      ids.push_back(there_->frame().header.id);
      for (at::Tensor& each : there_->frame().tensors) tensors.push_back(each);
    }
    here_->flush();
  }

  EXPECT_EQ(ids, (std::vector<uint64_t>{9, 10}));
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_TRUE(at::equal(tensors[0], tensor));
  EXPECT_FALSE(here_->blocked());
  EXPECT_EQ(here_->unsent_bytes(), 0u);
}

TEST_F(LinkTest, KnowsThatItStandsWithinAFrame) {
  const wire::FrameHeader header{FrameKind::kGoodbye, 0, 0, 10, 0, 0};
  const iovec half{const_cast<wire::FrameHeader*>(&header), sizeof header};
  here_->connection().send(&half, 1);

  there_->receive();

  EXPECT_FALSE(there_->next_frame());
  EXPECT_TRUE(there_->within_frame());
  EXPECT_EQ(there_->received_bytes(), 24u);
}

TEST_F(LinkTest, BrokenItSaysWhyAndStaysSo) {
  here_->close();

  EXPECT_EQ(there_->receive(), State::kBroken);
  EXPECT_NE(there_->why_broken(), "");
  there_->queue(ping(1));
  EXPECT_EQ(there_->flush(), State::kBroken);
}

TEST_F(LinkTest, ManyThreadsMayQueueAndFlush) {
  constexpr uint64_t kEach = 2000;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([this, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        here_->queue(ping(t << 32 | i));
        while (here_->flush() == State::kBlocked) std::this_thread::yield();
      }
    });
  }
  std::vector<uint64_t> next(3);
  uint64_t total = 0;

  while (total < 3 * kEach) {
    for (const uint64_t id : arrived()) {
      ASSERT_EQ(id & UINT32_MAX, next[id >> 32]++) << "frames of one thread stay in order";
      ++total;
    }
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(here_->unsent_bytes(), 0u);
}

}  // namespace
}  // namespace weft::rpc

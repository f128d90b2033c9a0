// SPDX-License-Identifier: BSD-3-Clause
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "transport/loopback/loopback_transport.h"
#include "wire/frame.h"

namespace weft::transport {
namespace {

using namespace std::chrono_literals;
using Kind = Fault::Kind;
using Status = IoResult::Status;

// What the plan does to the frame of an index, in the direction from the connector.
using Faults = std::map<size_t, Fault>;

class LoopbackFaults : public testing::Test {
 protected:
  LoopbackFaults() {
    const auto transport = network_->transport();
    const auto listener = transport->listen("there");
    connector_ = transport->connect("there");
    acceptor_ = listener->accept().connection;
  }

  void plan(Faults faults) {
    network_->set_faults([faults = std::move(faults)](const FrameInFlight& frame) {
      const auto found = faults.find(frame.index);
      return frame.from_connector && found != faults.end() ? found->second : Fault{};
    });
  }

  static std::string frame(uint64_t id, const std::string& body = "") {
    const wire::FrameHeader header{wire::FrameKind::kGoodbye,          0,  0,
                                   static_cast<uint32_t>(body.size()), id, 0};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body;
  }
  static Status send(Connection& connection, std::string bytes) {
    const iovec piece{bytes.data(), bytes.size()};
    return connection.send(&piece, 1).status;
  }
  // Everything that is there now; `closed_` says whether the end came.
  std::string receive(Connection& connection) {
    std::string all;
    char buffer[4096];
    for (;;) {
      const IoResult got = connection.receive(buffer, sizeof buffer);
      closed_ = got.status == Status::kClosed;
      if (got.status != Status::kDone) return all;
      all.append(buffer, got.bytes);
    }
  }
  // Sends three frames and returns what arrives of them.
  std::string three_frames() {
    for (uint64_t id = 0; id < 3; ++id) send(*connector_, frame(id, "body"));
    return receive(*acceptor_);
  }

  std::shared_ptr<base::ManualClock> clock_ = std::make_shared<base::ManualClock>();
  std::shared_ptr<LoopbackNetwork> network_ = std::make_shared<LoopbackNetwork>(clock_);
  std::unique_ptr<Connection> connector_, acceptor_;
  bool closed_ = false;
  const std::string all_three_ = frame(0, "body") + frame(1, "body") + frame(2, "body");
};

TEST_F(LoopbackFaults, WithoutAPlanFramesArriveAsTheyAre) {
  EXPECT_EQ(three_frames(), all_three_);
  EXPECT_FALSE(closed_);
}

TEST_F(LoopbackFaults, APlanThatDoesNothingChangesNothing) {
  plan({});

  EXPECT_EQ(three_frames(), all_three_);
  EXPECT_FALSE(closed_);
}

TEST_F(LoopbackFaults, DropLosesTheFrameAndTheConnection) {
  plan({{1, {Kind::kDropConnection}}});

  EXPECT_EQ(three_frames(), frame(0, "body"));
  EXPECT_TRUE(closed_);
  receive(*connector_);
  EXPECT_TRUE(closed_);
}

TEST_F(LoopbackFaults, TruncateDeliversHalfAndBreaks) {
  plan({{1, {Kind::kTruncate}}});

  EXPECT_EQ(three_frames(), frame(0, "body") + frame(1, "body").substr(0, 14));
  EXPECT_TRUE(closed_);
}

TEST_F(LoopbackFaults, FlipInvertsOneBit) {
  plan({{1, {Kind::kFlip, 0ns, 8 * 8 + 5}}});

  EXPECT_EQ(three_frames(), frame(0, "body") + frame(1 ^ 32, "body") + frame(2, "body"));
  EXPECT_FALSE(closed_);
}

TEST_F(LoopbackFaults, FlipCountsBitsModuloTheFrame) {
  plan({{1, {Kind::kFlip, 0ns, 28 * 8 * 1000 + 8 * 8}}});

  EXPECT_EQ(three_frames(), frame(0, "body") + frame(0, "body") + frame(2, "body"));
}

TEST_F(LoopbackFaults, DuplicateDeliversTwiceInPlace) {
  plan({{1, {Kind::kDuplicate}}});

  EXPECT_EQ(three_frames(),
            frame(0, "body") + frame(1, "body") + frame(1, "body") + frame(2, "body"));
}

TEST_F(LoopbackFaults, DelayHoldsTheFrameAndThoseBehindIt) {
  plan({{1, {Kind::kDelay, 50ms}}});
  EXPECT_EQ(three_frames(), frame(0, "body"));

  clock_->advance(49ms);
  EXPECT_EQ(receive(*acceptor_), "");
  clock_->advance(1ms);

  EXPECT_EQ(receive(*acceptor_), frame(1, "body") + frame(2, "body"));
}

TEST_F(LoopbackFaults, DelayCountsFromTheSendingThoughTheClockMovesMeanwhile) {
  std::thread mover;
  network_->set_faults([this, &mover](const FrameInFlight&) {
    const base::Time sent = clock_->now();
    mover = std::thread([this] { clock_->advance(50ms); });
    while (clock_->now() == sent) std::this_thread::yield();
    return Fault{Kind::kDelay, 50ms};
  });

  send(*connector_, frame(0));
  mover.join();

  EXPECT_EQ(receive(*acceptor_), frame(0));
}

TEST_F(LoopbackFaults, ADelayedFrameIsOvertakenOnAnotherConnection) {
  const auto transport = network_->transport();
  const auto listener = transport->listen("elsewhere");
  const auto other = transport->connect("elsewhere");
  const auto other_end = listener->accept().connection;
  network_->set_faults([](const FrameInFlight& frame) {
    return frame.to == "there" ? Fault{Kind::kDelay, 1s} : Fault{};
  });

  send(*connector_, frame(1));
  send(*other, frame(2));

  EXPECT_EQ(receive(*acceptor_), "");
  EXPECT_EQ(receive(*other_end), frame(2));
  clock_->advance(1s);
  EXPECT_EQ(receive(*acceptor_), frame(1));
}

TEST_F(LoopbackFaults, FramesAreWholeHoweverTheyAreSent) {
  plan({{1, {Kind::kFlip, 0ns, 64}}, {2, {Kind::kDuplicate}}});
  std::string arrived;

  for (const char byte : all_three_) {
    send(*connector_, std::string(1, byte));
    arrived += receive(*acceptor_);
  }

  EXPECT_EQ(arrived, frame(0, "body") + frame(0, "body") + frame(2, "body") + frame(2, "body"));
}

TEST_F(LoopbackFaults, ThePlanIsToldWhoSendsWhat) {
  std::vector<FrameInFlight> told;
  network_->set_faults([&told](const FrameInFlight& frame) {
    told.push_back(frame);
    return Fault{};
  });

  send(*connector_, frame(0) + frame(1));
  send(*acceptor_, frame(2));

  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].to, "there");
  EXPECT_TRUE(told[0].from_connector);
  EXPECT_EQ(told[1].index, 1u);
  EXPECT_EQ(told[2].from, "there");
  EXPECT_FALSE(told[2].from_connector);
  EXPECT_EQ(told[2].index, 0u);
  EXPECT_EQ(told[2].kind, static_cast<uint8_t>(wire::FrameKind::kGoodbye));
  EXPECT_EQ(told[2].connection, told[0].connection);
}

TEST_F(LoopbackFaults, AFrameLargerThanTheSocketArrivesWhole) {
  plan({});
  const std::string large = frame(1, std::string(4 << 20, 'x'));
  EXPECT_EQ(send(*connector_, large), Status::kDone);

  std::string arrived;
  for (int i = 0; i < 10'000 && arrived.size() < large.size(); ++i) {
    arrived += receive(*acceptor_);
    network_->deliver_due();
  }

  EXPECT_TRUE(arrived == large);
}

TEST_F(LoopbackFaults, BreakAllBreaksWhatStands) {
  network_->break_all();

  receive(*acceptor_);
  EXPECT_TRUE(closed_);
  receive(*connector_);
  EXPECT_TRUE(closed_);
}

}  // namespace
}  // namespace weft::transport

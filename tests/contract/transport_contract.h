// What every transport owes the RPC layer. A transport is tested by one small file:
//
//   struct Backend {
//     static constexpr const char* kAnyAddress = ...;   // listen() finds a free one
//     static constexpr const char* kNobody = ...;       // nobody listens there
//     std::unique_ptr<Transport> transport();           // all of one Backend reach each other
//   };
//   INSTANTIATE_TYPED_TEST_SUITE_P(Name, TransportContract, Backend);
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "transport/connection.h"
#include "transport/poller.h"
#include "weft/error.h"

namespace weft::transport {

template <typename Backend>
class TransportContract : public testing::Test {
 protected:
  using Status = IoResult::Status;
  static constexpr std::chrono::seconds kLimit{20};

  struct Pair {
    std::unique_ptr<Connection> connector, acceptor;
  };

  static void wait_readable(EventSource& source) {
    ASSERT_TRUE(source.wait(kReadable, kLimit).readable);
  }
  static void wait_writable(EventSource& source) {
    ASSERT_TRUE(source.wait(kWritable, kLimit).writable);
  }
  static std::unique_ptr<Connection> accept(Listener& listener) {
    wait_readable(listener);
    return listener.accept().connection;
  }
  std::unique_ptr<Connection> connect(const std::string& address) {
    auto connection = transport_->connect(address);
    wait_writable(*connection);
    EXPECT_NO_THROW(connection->check_connected());
    return connection;
  }
  Pair connected_pair() {
    const auto listener = transport_->listen(Backend::kAnyAddress);
    Pair pair;
    pair.connector = connect(listener->address());
    pair.acceptor = accept(*listener);
    return pair;
  }

  static void send(Connection& connection, const std::string& text) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    const IoResult sent = connection.send(&piece, 1);
    ASSERT_EQ(sent.status, Status::kDone) << sent.why;
    ASSERT_EQ(sent.bytes, text.size());
  }
  static std::string receive(Connection& connection, size_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      char buffer[4096];
      wait_readable(connection);
      const IoResult got = connection.receive(buffer, std::min(sizeof buffer, bytes - text.size()));
      if (got.status == Status::kClosed) break;
      text.append(buffer, got.bytes);
    }
    return text;
  }
  // Sends `bytes` bytes of a pattern, waiting for room as often as needed.
  static void send_pattern(Connection& connection, size_t bytes, int& would_block) {
    std::vector<unsigned char> data(64 * 1024);
    for (size_t done = 0; done < bytes;) {
      const size_t n = std::min(data.size(), bytes - done);
      for (size_t i = 0; i < n; ++i) data[i] = static_cast<unsigned char>((done + i) % 251);
      const iovec pieces[] = {{data.data(), n / 3}, {data.data() + n / 3, n - n / 3}};
      const IoResult sent = connection.send(pieces, 2);
      ASSERT_NE(sent.status, Status::kClosed) << sent.why;
      done += sent.bytes;
      if (sent.status == Status::kDone) continue;
      ++would_block;
      wait_writable(connection);
    }
  }
  static void receive_pattern(Connection& connection, size_t bytes) {
    std::vector<unsigned char> data(100'000);
    for (size_t done = 0; done < bytes;) {
      const IoResult got = connection.receive(data.data(), data.size());
      ASSERT_NE(got.status, Status::kClosed) << got.why;
      if (got.status == Status::kWouldBlock) wait_readable(connection);
      for (size_t i = 0; i < got.bytes; ++i, ++done) ASSERT_EQ(data[i], done % 251);
    }
  }
  static Status status_after_close(Connection& connection) {
    wait_readable(connection);
    char byte;
    return connection.receive(&byte, 1).status;
  }

  Backend backend_;
  std::unique_ptr<Transport> transport_ = backend_.transport();
};

TYPED_TEST_SUITE_P(TransportContract);

TYPED_TEST_P(TransportContract, BytesGoBothWays) {
  auto pair = this->connected_pair();

  this->send(*pair.connector, "there");
  this->send(*pair.acceptor, "and back");

  EXPECT_EQ(this->receive(*pair.acceptor, 5), "there");
  EXPECT_EQ(this->receive(*pair.connector, 8), "and back");
}

TYPED_TEST_P(TransportContract, AnotherTransportOfTheBackendReachesTheListener) {
  const auto other = this->backend_.transport();
  const auto listener = other->listen(TypeParam::kAnyAddress);
  const auto connector = this->connect(listener->address());
  const auto acceptor = this->accept(*listener);

  this->send(*connector, "hello");

  EXPECT_EQ(this->receive(*acceptor, 5), "hello");
  EXPECT_EQ(connector->remote_address(), listener->address());
}

TYPED_TEST_P(TransportContract, WhatIsSentBeforeItIsAcceptedArrives) {
  const auto listener = this->transport_->listen(TypeParam::kAnyAddress);
  const auto connector = this->connect(listener->address());
  this->send(*connector, "early");

  const auto acceptor = this->accept(*listener);

  EXPECT_EQ(this->receive(*acceptor, 5), "early");
}

TYPED_TEST_P(TransportContract, PiecesArriveAsOneStream) {
  auto pair = this->connected_pair();
  std::string one = "one ", two = "two ", three = "three";
  const iovec pieces[] = {{one.data(), 4}, {two.data(), 4}, {three.data(), 5}};

  const IoResult sent = pair.connector->send(pieces, 3);

  EXPECT_EQ(sent.bytes, 13u);
  EXPECT_EQ(this->receive(*pair.acceptor, 13), "one two three");
}

TYPED_TEST_P(TransportContract, WithoutBytesAReceiveWouldBlock) {
  auto pair = this->connected_pair();
  char byte;

  EXPECT_EQ(pair.connector->receive(&byte, 1).status, IoResult::Status::kWouldBlock);
  EXPECT_FALSE(pair.connector->wait(kReadable, std::chrono::milliseconds(1)).any());
  EXPECT_EQ(pair.acceptor->wait_and_receive(&byte, 1).status, IoResult::Status::kWouldBlock);
}

TYPED_TEST_P(TransportContract, AReceiveThatWaitsIsWokenByBytes) {
  auto pair = this->connected_pair();
  std::thread sender([&] { this->send(*pair.connector, "x"); });
  char byte = 0;

  IoResult got{IoResult::Status::kWouldBlock};
  while (got.status == IoResult::Status::kWouldBlock)
    got = pair.acceptor->wait_and_receive(&byte, 1);
  sender.join();

  EXPECT_EQ(got.status, IoResult::Status::kDone);
  EXPECT_EQ(byte, 'x');
}

TYPED_TEST_P(TransportContract, AWriterWaitsForASlowReaderAndGoesOn) {
  auto pair = this->connected_pair();
  constexpr size_t kBytes = 32 << 20;
  int would_block = 0;

  std::thread sender([&] { this->send_pattern(*pair.connector, kBytes, would_block); });
  while (pair.connector->wait(kWritable, std::chrono::milliseconds(0)).writable) {
  }
  this->receive_pattern(*pair.acceptor, kBytes);
  sender.join();

  EXPECT_GT(would_block, 0);
}

TYPED_TEST_P(TransportContract, LargeTransfersGoBothWaysAtOnce) {
  auto pair = this->connected_pair();
  constexpr size_t kBytes = 8 << 20;
  int ignored[2] = {};
  std::thread threads[] = {
      std::thread([&] { this->send_pattern(*pair.connector, kBytes, ignored[0]); }),
      std::thread([&] { this->send_pattern(*pair.acceptor, kBytes, ignored[1]); }),
      std::thread([&] { this->receive_pattern(*pair.acceptor, kBytes); })};

  this->receive_pattern(*pair.connector, kBytes);

  for (std::thread& thread : threads) thread.join();
}

TYPED_TEST_P(TransportContract, FinishSendingLetsTheRestArriveAndTheOtherWayOpen) {
  auto pair = this->connected_pair();
  this->send(*pair.connector, "the last words");

  pair.connector->finish_sending();
  const std::string heard = this->receive(*pair.acceptor, 1000);
  this->send(*pair.acceptor, "understood");

  EXPECT_EQ(heard, "the last words");
  EXPECT_EQ(this->receive(*pair.connector, 10), "understood");
}

TYPED_TEST_P(TransportContract, CloseReachesBothEndsFromEitherSide) {
  for (const bool by_connector : {true, false}) {
    auto pair = this->connected_pair();

    (by_connector ? pair.connector : pair.acceptor)->close_both_ways();

    EXPECT_EQ(this->status_after_close(*pair.connector), IoResult::Status::kClosed);
    EXPECT_EQ(this->status_after_close(*pair.acceptor), IoResult::Status::kClosed);
  }
}

TYPED_TEST_P(TransportContract, WhatArrivedBeforeTheCloseCanBeRead) {
  auto pair = this->connected_pair();
  this->send(*pair.connector, "bye");

  pair.connector->close_both_ways();

  EXPECT_EQ(this->receive(*pair.acceptor, 100), "bye");
  EXPECT_EQ(this->status_after_close(*pair.acceptor), IoResult::Status::kClosed);
}

TYPED_TEST_P(TransportContract, AnEndThatIsDestroyedClosesTheOther) {
  auto pair = this->connected_pair();

  pair.connector.reset();

  EXPECT_EQ(this->status_after_close(*pair.acceptor), IoResult::Status::kClosed);
}

TYPED_TEST_P(TransportContract, SendingToAClosedEndIsAnErrorAndNoSignal) {
  auto pair = this->connected_pair();
  pair.acceptor->close_both_ways();
  this->status_after_close(*pair.connector);
  char byte = 'x';
  const iovec piece{&byte, 1};

  IoResult sent{IoResult::Status::kDone};
  for (int i = 0; i < 1000 && sent.status == IoResult::Status::kDone; ++i) {
    sent = pair.connector->send(&piece, 1);
  }

  EXPECT_EQ(sent.status, IoResult::Status::kClosed);
  EXPECT_NE(sent.why, "");
}

TYPED_TEST_P(TransportContract, CloseFromAnotherThreadEndsAPoll) {
  auto pair = this->connected_pair();
  Poller poller;
  poller.add(*pair.acceptor, kReadable, 7);

  std::thread closer([&] { pair.acceptor->close_both_ways(); });
  const auto events = poller.wait(this->kLimit);
  closer.join();

  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].token, 7u);
  EXPECT_TRUE(events[0].readable);
}

TYPED_TEST_P(TransportContract, CloseFromAnotherThreadEndsAReceiveThatWaits) {
  auto pair = this->connected_pair();
  std::thread closer([&] { pair.acceptor->close_both_ways(); });
  char byte;

  IoResult got{IoResult::Status::kWouldBlock};
  while (got.status == IoResult::Status::kWouldBlock)
    got = pair.acceptor->wait_and_receive(&byte, 1);
  closer.join();

  EXPECT_EQ(got.status, IoResult::Status::kClosed);
}

TYPED_TEST_P(TransportContract, ConnectToNobodyFails) {
  const auto connect = [this] {
    const auto connection = this->transport_->connect(TypeParam::kNobody);
    this->wait_writable(*connection);
    connection->check_connected();
  };

  EXPECT_THROW(connect(), Error);
}

TYPED_TEST_P(TransportContract, AListenerThatIsGoneRefuses) {
  const std::string address = this->transport_->listen(TypeParam::kAnyAddress)->address();
  const auto connect = [&] {
    const auto connection = this->transport_->connect(address);
    this->wait_writable(*connection);
    connection->check_connected();
  };

  EXPECT_THROW(connect(), Refused);
}

TYPED_TEST_P(TransportContract, AnAddressHasOneListener) {
  const auto listener = this->transport_->listen(TypeParam::kAnyAddress);
  const auto other = this->transport_->listen(TypeParam::kAnyAddress);

  EXPECT_NE(listener->address(), other->address());
  EXPECT_THROW(this->transport_->listen(listener->address()), Error);
}

TYPED_TEST_P(TransportContract, AcceptGivesNoneWhenNobodyCame) {
  const auto listener = this->transport_->listen(TypeParam::kAnyAddress);

  EXPECT_EQ(listener->accept().status, Listener::Accepted::Status::kNone);
}

TYPED_TEST_P(TransportContract, AConnectorThatLeftAgainDoesNotHurtTheListener) {
  const auto listener = this->transport_->listen(TypeParam::kAnyAddress);
  for (int i = 0; i < 10; ++i) this->connect(listener->address());

  const auto stays = this->connect(listener->address());
  this->send(*stays, "here");
  std::string heard;
  while (heard.empty()) heard = this->receive(*this->accept(*listener), 4);

  EXPECT_EQ(heard, "here");
}

TYPED_TEST_P(TransportContract, ManyConnectionsDoNotMix) {
  constexpr size_t kCount = 100;
  const auto listener = this->transport_->listen(TypeParam::kAnyAddress);
  std::vector<std::unique_ptr<Connection>> connectors, acceptors;
  for (size_t i = 0; i < kCount; ++i) {
    connectors.push_back(this->connect(listener->address()));
    acceptors.push_back(this->accept(*listener));
  }

  for (size_t i = 0; i < kCount; ++i) this->send(*connectors[i], std::to_string(1000 + i));

  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(this->receive(*acceptors[i], 4), std::to_string(1000 + i));
  }
}

REGISTER_TYPED_TEST_SUITE_P(
    TransportContract, BytesGoBothWays, AnotherTransportOfTheBackendReachesTheListener,
    WhatIsSentBeforeItIsAcceptedArrives, PiecesArriveAsOneStream, WithoutBytesAReceiveWouldBlock,
    AReceiveThatWaitsIsWokenByBytes, AWriterWaitsForASlowReaderAndGoesOn,
    LargeTransfersGoBothWaysAtOnce, FinishSendingLetsTheRestArriveAndTheOtherWayOpen,
    CloseReachesBothEndsFromEitherSide, WhatArrivedBeforeTheCloseCanBeRead,
    AnEndThatIsDestroyedClosesTheOther, SendingToAClosedEndIsAnErrorAndNoSignal,
    CloseFromAnotherThreadEndsAPoll, CloseFromAnotherThreadEndsAReceiveThatWaits,
    ConnectToNobodyFails, AListenerThatIsGoneRefuses, AnAddressHasOneListener,
    AcceptGivesNoneWhenNobodyCame, AConnectorThatLeftAgainDoesNotHurtTheListener,
    ManyConnectionsDoNotMix);

}  // namespace weft::transport

// SPDX-License-Identifier: BSD-3-Clause
#include "transport/nearest/nearest_transport.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace weft::transport {
namespace {

using testing::HasSubstr;

class NearestTransportTest : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kLimit{20};

  // Both ends of a connection to `address`, over which a text has gone; the way it went.
  std::string way_to(const std::string& address) {
    const auto connector = transport->connect(address);
    EXPECT_TRUE(connector->wait(kWritable, kLimit).writable);
    connector->check_connected();
    const iovec piece{const_cast<char*>("hello"), 5};
    EXPECT_EQ(connector->send(&piece, 1).bytes, 5u);
    EXPECT_TRUE(listener->wait(kReadable, kLimit).readable);
    const auto acceptor = listener->accept().connection;
    char heard[6] = {};
    EXPECT_TRUE(acceptor->wait(kReadable, kLimit).readable);
    EXPECT_EQ(acceptor->receive(heard, 5).bytes, 5u);
    EXPECT_STREQ(heard, "hello");
    EXPECT_EQ(acceptor->way(), connector->way());
    return connector->way();
  }
  std::string tcp_part() const { return address.substr(0, address.find(' ')); }

  std::unique_ptr<Transport> transport = make_nearest_transport();
  std::unique_ptr<Listener> listener = transport->listen("127.0.0.1:0");
  std::string address = listener->address();
};

TEST_F(NearestTransportTest, ProcessesOfOneHostShareMemory) {
  EXPECT_EQ(way_to(address), "shm");
  EXPECT_EQ(transport->detour(address), "");
}

TEST_F(NearestTransportTest, AnAddressWithoutTheFurtherWayIsReachedOverTcp) {
  EXPECT_EQ(way_to(tcp_part()), "tcp");
  EXPECT_THAT(transport->detour(tcp_part()), HasSubstr("offers no shared memory"));
}

TEST_F(NearestTransportTest, AFurtherWayThatLeadsNowhereIsNotTaken) {
  const std::string elsewhere = tcp_part() + " shm:weft-of-another-host";
  EXPECT_EQ(way_to(elsewhere), "tcp");
  EXPECT_THAT(transport->detour(elsewhere), HasSubstr("another host"));
}

TEST_F(NearestTransportTest, AfterAConnectionOnWhichNobodyAnsweredTheOtherWayIsTaken) {
  const auto silent = transport->connect(address);
  ASSERT_EQ(silent->way(), "shm");

  EXPECT_TRUE(transport->takes_other_way(address, *silent, "no hello"));
  listener->accept();

  EXPECT_EQ(way_to(address), "tcp");
  EXPECT_EQ(transport->detour(address), "no hello");
  EXPECT_FALSE(
      transport->takes_other_way(address, *transport->connect(tcp_part()), "no hello either"));
}

TEST_F(NearestTransportTest, AWorkerThatIsGoneRefuses) {
  listener.reset();
  const auto connect = [this] {
    const auto connection = transport->connect(address);
    connection->wait(kWritable, kLimit);
    connection->check_connected();
  };
  EXPECT_THROW(connect(), Refused);
}

TEST_F(NearestTransportTest, OtherTransportsSeeTheirPartOfTheAddress) {
  const auto connection = make_tcp_transport()->connect(tcp_part());
  EXPECT_TRUE(connection->wait(kWritable, kLimit).writable);
  EXPECT_NO_THROW(connection->check_connected());
}

}  // namespace
}  // namespace weft::transport

// SPDX-License-Identifier: BSD-3-Clause
#include "transport/tcp/tcp_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"

namespace weft::transport {
namespace {

using testing::HasSubstr;

TEST(TcpAddress, ReadsHostsOfBothFamilies) {
  EXPECT_EQ(TcpAddress::parse("127.0.0.1:80").text(), "127.0.0.1:80");
  EXPECT_EQ(TcpAddress::parse("[::1]:8080").text(), "[::1]:8080");
  EXPECT_EQ(TcpAddress::parse("0.0.0.0:0").text(), "0.0.0.0:0");
  EXPECT_EQ(TcpAddress::parse("localhost:65535").port(), 65535);
}

TEST(TcpAddress, KnowsWhetherItMeansEveryInterface) {
  EXPECT_TRUE(TcpAddress::parse("0.0.0.0:1").is_any());
  EXPECT_TRUE(TcpAddress::parse("[::]:1").is_any());
  EXPECT_FALSE(TcpAddress::parse("127.0.0.1:1").is_any());
  EXPECT_FALSE(TcpAddress::parse("[::1]:1").is_any());
}

TEST(TcpAddress, RefusesTextThatIsNoneAndQuotesIt) {
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1",
                           "127.0.0.1:65536", "127.0.0.1:123456", "[]:1"}) {
    try {
      TcpAddress::parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.message(), HasSubstr('"' + std::string(text) + '"'));
    }
  }
}

}  // namespace
}  // namespace weft::transport

// Two workers that are not of one build say hello.
// SPDX-License-Identifier: BSD-3-Clause
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/handmade_peer.h"

namespace weft::rpc {
namespace {

using test::HandmadePeer;
using testing::HasSubstr;
using wire::FrameKind;

int64_t doubled(int64_t value) { return 2 * value; }

class HelloExchange : public testing::Test {
 protected:
  // What a later version of Weft may say, and what it may say behind that.
  wire::Hello newer_hello() const {
    wire::Hello hello = other_.hello();
    hello.version = wire::kProtocolVersion + 1;
    hello.oldest = wire::kProtocolVersion;
    hello.features = wire::Features(~uint64_t{0} << 2);  // none that this version knows
    return hello;
  }
  const std::string later_fields_ = "fields that only later versions know";

  wire::Hello hello_without_common_version() const {
    wire::Hello hello = other_.hello();
    hello.version = hello.oldest = wire::kProtocolVersion + 1;
    return hello;
  }

  // The id of the first call on a connection: slot 0 of the table, in its first generation.
  static constexpr uint64_t kFirstCall = uint64_t{1} << 32;

  HandmadePeer other_;
};

TEST_F(HelloExchange, ACallerOfALaterVersionIsServedInThisOne) {
  const detail::Ref<Link> link = other_.connect();

  other_.say(*link, newer_hello(), later_fields_);

  ASSERT_EQ(other_.next(*link), FrameKind::kHello);
  const wire::Hello answer = wire::decode_hello(link->frame().body);
  EXPECT_EQ(answer.version, wire::kProtocolVersion);
  EXPECT_EQ(answer.oldest, wire::kOldestVersion);
  EXPECT_EQ(answer.features, wire::kOfferedFeatures);
  other_.send(*link, {FrameKind::kPing, 0, 0, 0, 17});
  ASSERT_EQ(other_.next(*link), FrameKind::kPong);
  EXPECT_EQ(link->frame().header.id, 17u);
}

TEST_F(HelloExchange, ACallerWithoutACommonVersionIsToldWhichVersionsMet) {
  const detail::Ref<Link> link = other_.connect();

  other_.say(*link, hello_without_common_version());

  ASSERT_EQ(other_.next(*link), FrameKind::kGoodbye);
  EXPECT_EQ(other_.text(*link), wire::describe_versions(hello_without_common_version()));
  EXPECT_EQ(other_.next(*link), std::nullopt);
}

TEST_F(HelloExchange, ACallerOfVersion2IsToldWhichVersionsMet) {
  const detail::Ref<Link> link = other_.connect();
  Encoder body;
  body.scalar<uint16_t>(2);
  body.write("what version 2 had here", 23);

  other_.send(*link, {FrameKind::kHello, 0, 0, 0, wire::kHelloMagic}, {}, body);

  ASSERT_EQ(other_.next(*link), FrameKind::kGoodbye);
  EXPECT_THAT(other_.text(*link), HasSubstr("the hello is of protocol version 2"));
}

TEST_F(HelloExchange, ACalleeOfALaterVersionIsCalledInThisOne) {
  const Future<int64_t> result = other_.worker().async<doubled>("other", 21);
  const detail::Ref<Link> link = other_.accept();
  ASSERT_EQ(other_.next(*link), FrameKind::kHello);

  other_.say(*link, newer_hello(), later_fields_);

  ASSERT_EQ(other_.next(*link), FrameKind::kCall);
  Encoder value;
  value.scalar(int64_t{42});
  other_.send(*link, {FrameKind::kReply, 0, 0, 0, link->frame().header.id}, {}, value);
  EXPECT_EQ(result.wait(), 42);
}

// Its number is that of the worker's first call, which has not been sent yet.
TEST_F(HelloExchange, AReplyBeforeTheHelloIsNotBelieved) {
  const Future<int64_t> result = other_.worker().async<doubled>("other", 21);
  const detail::Ref<Link> link = other_.accept();
  ASSERT_EQ(other_.next(*link), FrameKind::kHello);

  Encoder value;
  value.scalar(int64_t{66});
  other_.send(*link, {FrameKind::kReply, 0, 0, 0, kFirstCall}, {}, value);

  result.wait_for(std::chrono::seconds(60));
  ASSERT_TRUE(result.error().has_value());
  EXPECT_EQ(result.error()->code(), ErrorCode::kUnavailable);
  EXPECT_THAT(result.error()->message(), HasSubstr("no hello"));
}

TEST_F(HelloExchange, NothingBehindARefusedHelloIsRead) {
  const Future<int64_t> result = other_.worker().async<doubled>("other", 21);
  const detail::Ref<Link> link = other_.accept();
  ASSERT_EQ(other_.next(*link), FrameKind::kHello);

  Encoder body;
  encode_hello(body, hello_without_common_version());
  link->queue({FrameKind::kHello, 0, 0, 0, wire::kHelloMagic}, {}, body);
  link->queue({FrameKind::kCall, wire::kNamed, 0, 0, 1}, std::span<const std::byte>());
  link->flush();

  result.wait_for(std::chrono::seconds(60));
  ASSERT_TRUE(result.error().has_value());
  EXPECT_EQ(result.error()->code(), ErrorCode::kUnavailable);
  EXPECT_EQ(other_.worker().debug_info().counters.at("connections.bad"), 0u);
}

TEST_F(HelloExchange, ACalleeWithoutACommonVersionIsUnavailable) {
  const Future<int64_t> result = other_.worker().async<doubled>("other", 21);
  const detail::Ref<Link> link = other_.accept();
  ASSERT_EQ(other_.next(*link), FrameKind::kHello);

  other_.say(*link, hello_without_common_version());

  result.wait_for(std::chrono::seconds(60));
  ASSERT_TRUE(result.error().has_value());
  EXPECT_EQ(result.error()->code(), ErrorCode::kUnavailable);
  EXPECT_THAT(result.error()->message(),
              HasSubstr(wire::describe_versions(hello_without_common_version())));
}

}  // namespace
}  // namespace weft::rpc

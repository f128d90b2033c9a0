// What a worker does with frames of a peer that does not keep to the protocol, or is of another
// version of it.
// SPDX-License-Identifier: BSD-3-Clause
#include <malloc.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/functions/function_table.h"
#include "support/handmade_peer.h"
#include "support/scenario.h"
#include "weft/detail/function_entry.h"

namespace weft::rpc {
namespace {

using test::HandmadePeer;
using testing::HasSubstr;
using wire::FrameKind;

int64_t tripled(int64_t value) { return 3 * value; }
int64_t negated(int64_t value) { return -value; }

class WireRules : public testing::Test {
 protected:
  template <auto F>
  static void call(Link& link, uint64_t id, int64_t argument, uint32_t number = kNumber) {
    const detail::FunctionEntry& entry = detail::RemoteFunction<F>::entry();
    Encoder arguments;
    arguments.scalar(argument);
    const wire::PreludeBytes prelude({number, 0, 0, entry.name, entry.signature});
    HandmadePeer::send(link, {FrameKind::kCall, wire::kNamed, 0, 0, id}, prelude.bytes(),
                       arguments);
  }
  static std::optional<int64_t> result(Link& link, uint64_t id) {
    if (HandmadePeer::next(link) != FrameKind::kReply) return std::nullopt;
    EXPECT_EQ(link.frame().header.id, id);
    EXPECT_EQ(link.frame().header.flags, 0);
    Decoder in(link.frame().body, {});
    return in.scalar<int64_t>();
  }

  static constexpr uint32_t kNumber = 5;
  explicit WireRules(HandmadePeer::Way way = HandmadePeer::Way::kLoopback) : other_(way) {}
  HandmadePeer other_;
};

TEST_F(WireRules, AfterItsGoodbyeACallerIsAnsweredAndNotHeard) {
  const detail::Ref<Link> link = other_.call_worker();

  call<tripled>(*link, 1, 7);
  other_.send(*link, {FrameKind::kGoodbye});

  EXPECT_EQ(result(*link, 1), 21);
  call<tripled>(*link, 2, 7);
  EXPECT_EQ(other_.next(*link), std::nullopt);
}

TEST_F(WireRules, APingAfterGoodbyeClosesTheConnection) {
  const detail::Ref<Link> link = other_.call_worker();

  other_.send(*link, {FrameKind::kGoodbye});
  other_.send(*link, {FrameKind::kPing});

  EXPECT_EQ(other_.next(*link), std::nullopt);
}

TEST_F(WireRules, ANameBindsItsNumberAnew) {
  const detail::Ref<Link> link = other_.call_worker();

  call<tripled>(*link, 1, 7);
  EXPECT_EQ(result(*link, 1), 21);
  call<negated>(*link, 2, 7);
  EXPECT_EQ(result(*link, 2), -7);
}

TEST_F(WireRules, FunctionsMayHaveHighNumbers) {
  const detail::Ref<Link> link = other_.call_worker();
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;

  call<tripled>(*link, 1, 7, (1u << 20) - 1);
  EXPECT_EQ(result(*link, 1), 21);
  // A table of so many functions would take 48 MiB.
  EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, before + (size_t{4} << 20));
  call<negated>(*link, 2, 7, 1u << 14);
  EXPECT_EQ(result(*link, 2), -7);
  call<negated>(*link, 3, 7, 1u << 20);
  EXPECT_EQ(other_.next(*link), std::nullopt);
}

TEST_F(WireRules, AsManyHighNumbersAsTheDocumentAllowsWorkAndOneMoreEndsTheConnection) {
  const detail::Ref<Link> link = other_.call_worker();
  constexpr uint32_t kFirst = 1u << 14, kMost = 1u << 14;
  for (uint32_t i = 0; i < kMost; ++i) {
    call<tripled>(*link, i, 7, kFirst + i);
    ASSERT_EQ(result(*link, i), 21);
  }
  call<tripled>(*link, kMost, 7, kFirst);
  EXPECT_EQ(result(*link, kMost), 21);

  call<tripled>(*link, kMost + 1, 7, kFirst + kMost);
  EXPECT_EQ(other_.next(*link), std::nullopt);
}

std::atomic<int> ran{0};
int64_t counted(int64_t value) {
  ++ran;
  return value;
}

constexpr size_t kLongReply = size_t{4} << 20;
std::atomic<int> long_replies{0};
std::string reply_at_length(int64_t) {
  ++long_replies;
  return std::string(kLongReply, 'x');
}

// Until none has come for a while.
int long_replies_made() {
  for (int before = -1; before != long_replies;) {
    before = long_replies;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return long_replies;
}

// Where the system takes so many bytes and no more.
class WireRulesOfProcesses : public WireRules,
                             public testing::WithParamInterface<HandmadePeer::Way> {
 protected:
  WireRulesOfProcesses() : WireRules(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(All, WireRulesOfProcesses,
                         testing::Values(HandmadePeer::Way::kTcp,
                                         HandmadePeer::Way::kSharedMemory));

// As many as the system takes of one connection before anybody reads them.
int long_replies_of_system() {
  size_t bytes = 0;
  for (const char* limits : {"/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem"}) {
    size_t least = 0, usual = 0, most = 0;
    std::ifstream(limits) >> least >> usual >> most;
    bytes += most;
  }
  return static_cast<int>(bytes / kLongReply) + 1;
}

TEST_P(WireRulesOfProcesses, RepliesThatACallerDoesNotTakeAreLimitedOverAllItsConnections) {
  constexpr int kConnections = 4;
  const int of_system = long_replies_of_system();
  const int calls_each = of_system + 40;
  long_replies = 0;
  std::vector<detail::Ref<Link>> links;
  for (int i = 0; i < kConnections; ++i) links.push_back(other_.call_worker());

  for (int id = 1; id <= calls_each; ++id) {
    for (const auto& link : links) call<reply_at_length>(*link, static_cast<uint64_t>(id), 0);
  }

  // The limit, one beyond it on each connection, and those of functions that ran when it was
  // reached.
  constexpr int kRunning = 16;
  const int most =
      static_cast<int>((size_t{64} << 20) / kLongReply) + kConnections * (1 + of_system) + kRunning;
  EXPECT_LE(long_replies_made(), most);

  std::vector<std::thread> readers;
  for (const auto& link : links) {
    readers.emplace_back([&link, calls_each] {
      for (int i = 0; i < calls_each; ++i) {
        ASSERT_EQ(HandmadePeer::next(*link), FrameKind::kReply);
        EXPECT_GT(link->frame().body.size(), kLongReply);
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(long_replies, kConnections * calls_each);
}

std::string reply_at_length_to(std::string) { return std::string(kLongReply, 'x'); }

// The caller takes replies as slowly as it makes calls, so that the connection pauses and goes on
// again while a call is being read.
TEST_P(WireRulesOfProcesses, ACallerThatTakesItsRepliesLateIsServedToTheEnd) {
  constexpr int kCalls = 150;
  constexpr int kUnread = (64 << 20) / kLongReply + 4;
  const detail::Ref<Link> link = other_.call_worker();
  const detail::FunctionEntry& entry = detail::RemoteFunction<reply_at_length_to>::entry();
  Encoder arguments;
  Codec<std::string>::encode(arguments, std::string(600 << 10, 'a'));
  std::atomic<int> taken{0};

  std::thread caller([&] {
    for (int id = 1; id <= kCalls; ++id) {
      while (id - taken > kUnread) std::this_thread::yield();
      HandmadePeer::send(*link, {FrameKind::kCall, wire::kNamed, 0, 0, static_cast<uint64_t>(id)},
                         wire::PreludeBytes({kNumber, 0, 0, entry.name, entry.signature}).bytes(),
                         arguments);
      while (link->has_queued() && link->flush() != Link::State::kBroken) std::this_thread::yield();
    }
  });
  for (; taken < kCalls; ++taken) {
    if (HandmadePeer::next(*link) != FrameKind::kReply) break;
    EXPECT_EQ(link->frame().header.flags & wire::kFailed, 0);
  }
  EXPECT_EQ(taken, kCalls);
  taken = kCalls;
  caller.join();
}

std::optional<Promise<int64_t>> later;
std::atomic<bool> later_is_there{false};
Future<int64_t> reply_later(int64_t) {
  Future<int64_t> future = later.emplace().future();
  later_is_there = true;
  return future;
}

TEST_P(WireRulesOfProcesses, ACallerMayGoWithoutHavingTakenItsReplies) {
  detail::Ref<Link> link = other_.call_worker();
  later.reset();
  later_is_there = false;
  long_replies = 0;
  call<reply_later>(*link, 1, 0);
  for (int id = 2; id < long_replies_of_system() + 40; ++id)
    call<reply_at_length>(*link, static_cast<uint64_t>(id), 0);
  long_replies_made();
  ASSERT_TRUE(test::eventually([] { return later_is_there.load(); }));

  link->close();
  link = {};
  const auto calls = [this] { return other_.worker().debug_info().calls.size(); };
  EXPECT_TRUE(test::eventually([&calls] { return calls() <= 1; }));
  later->set_value(7);  // nobody is there
  EXPECT_TRUE(test::eventually([&calls] { return calls() == 0; }));

  const detail::Ref<Link> next = other_.call_worker();
  call<tripled>(*next, 1, 7);
  EXPECT_EQ(result(*next, 1), 21);
}

TEST_F(WireRules, ACallWhoseCancelOvertookItIsNotBegun) {
  const detail::Ref<Link> link = other_.call_worker();
  ran = 0;

  other_.send(*link, {FrameKind::kCancel, 0, 0, 0, 1});
  call<counted>(*link, 1, 7);
  ASSERT_EQ(other_.next(*link), FrameKind::kReply);
  EXPECT_EQ(link->frame().header.id, 1u);
  EXPECT_EQ(link->frame().header.flags, wire::kFailed);
  EXPECT_EQ(wire::decode_failed(link->frame().body).code, ErrorCode::kCancelled);

  call<counted>(*link, 2, 8);
  EXPECT_EQ(result(*link, 2), 8);
  EXPECT_EQ(ran, 1);
}

TEST_F(WireRules, AFailedReplyOfALaterVersionsCodeSaysWhy) {
  const Future<int64_t> failing = other_.worker().async<tripled>("other", 1);
  const detail::Ref<Link> link = other_.serve_worker();
  ASSERT_EQ(other_.next(*link), FrameKind::kCall);

  other_.send_failed(*link, link->frame().header.id, {static_cast<ErrorCode>(99), "", "too hot"});

  failing.wait_for(std::chrono::seconds(60));
  ASSERT_TRUE(failing.error().has_value());
  EXPECT_EQ(failing.error()->code(), ErrorCode::kBadMessage);
  EXPECT_THAT(failing.error()->message(), HasSubstr("error code 99"));
  EXPECT_THAT(failing.error()->message(), HasSubstr("too hot"));
}

TEST_F(WireRules, AFailedReplyThatIsNoneFailsItsCallAlone) {
  const Future<int64_t> failing = other_.worker().async<tripled>("other", 1);
  const detail::Ref<Link> link = other_.serve_worker();
  ASSERT_EQ(other_.next(*link), FrameKind::kCall);

  other_.send(*link, {FrameKind::kReply, wire::kFailed, 0, 0, link->frame().header.id});

  failing.wait_for(std::chrono::seconds(60));
  ASSERT_TRUE(failing.error().has_value());
  EXPECT_EQ(failing.error()->code(), ErrorCode::kBadMessage);
  const Future<int64_t> next = other_.worker().async<tripled>("other", 2);
  ASSERT_EQ(other_.next(*link), FrameKind::kCall);
  Encoder value;
  value.scalar(int64_t{6});
  other_.send(*link, {FrameKind::kReply, 0, 0, 0, link->frame().header.id}, {}, value);
  EXPECT_EQ(next.wait(), 6);
}

}  // namespace
}  // namespace weft::rpc

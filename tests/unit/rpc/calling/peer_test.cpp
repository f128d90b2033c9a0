// Several connections to one worker: threads that call at the same time share nothing, and each
// thread's calls keep their order.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/current_call.h"
#include "weft/future.h"
#include "weft/rref.h"
#include "wire/frame.h"

namespace weft::connections {

using test::eventually;
using namespace std::chrono_literals;

int64_t twice(int64_t n) { return 2 * n; }
int64_t twice_at_a(int64_t n) { return current_agent().sync<twice>("a", n); }

// What came, by the thread that sent it.
struct Log {
  static constexpr bool kSerialized = true;
  void note(int64_t thread, int64_t number) { seen[thread].push_back(number); }
  bool in_order() {
    for (const auto& [thread, numbers] : seen) {
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (numbers[i] != static_cast<int64_t>(i)) return false;
      }
    }
    return true;
  }
  std::map<int64_t, std::vector<int64_t>> seen;
};

struct Held {
  std::mutex mutex;
  std::vector<Promise<int64_t>> answers;
};
Held* held = nullptr;
Future<int64_t> hold(const std::vector<int64_t>&) {
  std::lock_guard lock(held->mutex);
  return held->answers.emplace_back().future();
}
size_t held_calls() {
  std::lock_guard lock(held->mutex);
  return held->answers.size();
}

Options several(size_t connections) {
  Options options;
  options.connections_per_peer = connections;
  return options;
}

// Runs `body` on so many threads, each of which calls for the first time.
template <typename F>
void on_threads(size_t count, const F& body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (auto& thread : threads) thread.join();
}

bool is_hello(const transport::FrameInFlight& frame, const std::string& to) {
  return frame.kind == static_cast<uint8_t>(wire::FrameKind::kHello) && frame.from_connector &&
         frame.to == to;
}

uint64_t serving(Agent& agent) { return agent.debug_info().counters.at("connections.serving"); }

TEST(ConnectionsOfAPeer, AThreadUsesOne) {
  test::LoopbackGroup group({"a", "b"}, several(4));

  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(group[0].sync<twice>("b", i), 2 * i);

  EXPECT_EQ(serving(group[1]), 1u);
}

TEST(ConnectionsOfAPeer, ThreadsUseSeveralButNotMoreThanAllowed) {
  test::LoopbackGroup group({"a", "b"}, several(4));

  on_threads(16, [&](size_t) {
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(group[0].sync<twice>("b", i), 2 * i);
  });

  // Weft's own messages may have made the first one.
  EXPECT_GE(serving(group[1]), 4u);
  EXPECT_LE(serving(group[1]), 5u);
  const PeerStats peer = group[0].debug_info().peers.at(0);
  EXPECT_EQ(peer.calls, 1600u);
  EXPECT_EQ(peer.failed, 0u);
}

TEST(ConnectionsOfAPeer, OneIsEnoughForThoseWhoSaySo) {
  test::LoopbackGroup group({"a", "b"}, several(1));

  on_threads(8, [&](size_t) { EXPECT_EQ(group[0].sync<twice>("b", 1), 2); });

  EXPECT_EQ(serving(group[1]), 1u);
}

class RestingConnections : public testing::Test {
 protected:
  static Options without_heartbeats() {
    Options options = several(4);
    options.heartbeat_interval = options.suspect_after = 100'000h;
    options.dead_after = 200'000h;
    options.window_bytes = 1 << 20;
    return options;
  }
  void call_from_four_threads() {
    on_threads(4, [&](size_t) { EXPECT_EQ(group[0].sync<twice>("b", 1), 2); });
  }
  bool only_first_stands_after(base::Duration step) {
    return eventually([&] {
      clock->advance(step);
      return serving(group[1]) == 1;
    });
  }

  std::shared_ptr<base::ManualClock> clock = std::make_shared<base::ManualClock>();
  test::LoopbackGroup group{{"a", "b"}, without_heartbeats(), clock};
};

TEST_F(RestingConnections, AreClosedAfterAWhileAndMadeAgain) {
  EXPECT_EQ(group[0].sync<twice_at_a>("b", 1), 2);  // the first, in both directions
  for (int i = 0; i < 3; ++i) {
    call_from_four_threads();
    EXPECT_EQ(serving(group[1]), 4u);

    EXPECT_TRUE(only_first_stands_after(10s));
  }
  EXPECT_EQ(group[0].debug_info().peers.at(0).failed, 0u);
  EXPECT_STREQ(group[0].debug_info().peers.at(0).state.c_str(), "connected");
}

TEST_F(RestingConnections, HaveNoCallsUnanswered) {
  Held answers;
  held = &answers;
  std::vector<std::optional<Future<int64_t>>> calls(4);
  on_threads(4, [&](size_t i) {
    calls[i] = group[0].async<hold>({"b", Timeout(0)}, std::vector<int64_t>{});
  });
  ASSERT_TRUE(eventually([] { return held_calls() == 4; }));
  for (int i = 0; i < 100; ++i) {
    clock->advance(10s);
    EXPECT_EQ(group[0].sync<twice>("b", i), 2 * i);  // the loop has had time to look
  }
  EXPECT_GE(serving(group[1]), 4u);

  for (auto& answer : answers.answers) answer.set_value(7);
  for (auto& call : calls) EXPECT_EQ(call->wait(), 7);
  held = nullptr;
}

// As where the callee has no descriptors left.
TEST(ConnectionsOfAPeer, AThreadWhoseConnectionCannotBeMadeUsesTheFirst) {
  test::LoopbackGroup group({"a", "b"}, several(4));
  EXPECT_EQ(group[0].sync<twice_at_a>("b", 1), 2);  // calls of functions go over the first
  group.network().set_faults([&](const transport::FrameInFlight& frame) {
    return is_hello(frame, group.address(0)) ? transport::Fault{transport::Fault::Kind::kDelay, 60s}
                                             : transport::Fault{};
  });

  on_threads(8, [&](size_t) {
    for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(group[1].sync<twice>({"a", 5s}, i), 2 * i);
  });

  const PeerStats peer = group[1].debug_info().peers.at(0);
  EXPECT_EQ(peer.failed, 0u);
  EXPECT_EQ(peer.state, "connected");
}

TEST(ConnectionsOfAPeer, TheCallsOfAThreadKeepTheirOrder) {
  test::LoopbackGroup group({"a", "b"}, several(4));
  const auto log = remote<Log>(group[0], "b");

  on_threads(8, [&](size_t thread) {
    std::vector<Future<void>> calls;
    for (int64_t i = 0; i < 200; ++i)
      calls.push_back(log.rpc_async<&Log::note>(static_cast<int64_t>(thread), i));
    wait_all(calls);
  });

  EXPECT_TRUE(log.rpc_sync<&Log::in_order>());
}

// A call waits for its connection, which takes longer than a thread waits before it uses the first.
TEST(ConnectionsOfAPeer, ACallDoesNotOvertakeAnEarlierOneThatWaitsForItsConnection) {
  for (int round = 0; round < 3; ++round) {  // in one at most the thread's connection is the first
    std::atomic<bool> slow{false}, over{false};
    test::LoopbackGroup group({"a", "b"}, several(3));
    group.network().set_faults([&](const transport::FrameInFlight& frame) {
      return is_hello(frame, group.address(0)) && slow.exchange(false)
                 ? transport::Fault{transport::Fault::Kind::kDelay, 700ms}
                 : transport::Fault{};
    });
    std::thread delivery([&] {
      for (; !over; std::this_thread::sleep_for(1ms)) group.network().deliver_due();
    });
    const auto make_log = [&] { return remote<Log>(group[1], "a"); };
    const auto log = std::async(std::launch::async, make_log).get();
    slow = true;
    std::thread([&] {
      std::vector<Future<void>> calls{log.rpc_async<&Log::note>(0, 0)};
      EXPECT_EQ(group[0].sync<twice_at_a>("b", 1), 2);  // the first stands
      for (int64_t i = 1; i < 10; ++i) calls.push_back(log.rpc_async<&Log::note>(0, i));
      wait_all(calls);
      EXPECT_TRUE(log.rpc_sync<&Log::in_order>());
    }).join();
    over = true;
    delivery.join();
  }
}

TEST(ConnectionsOfAPeer, ShareTheWindowOfBytes) {
  Held all;
  held = &all;
  Options options = several(4);
  options.window_bytes = 1 << 20;
  test::LoopbackGroup group({"a", "b"}, options);
  const std::vector<int64_t> half(60'000);  // 480 kB, so two fit
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(group[0].sync<hold>("b", half), 1); });
  }

  ASSERT_TRUE(eventually([] { return held_calls() == 2; }));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(held_calls(), 2u) << "the others wait, whichever connection is theirs";

  for (size_t answered = 0; answered < 4; ++answered) {
    ASSERT_TRUE(eventually([&] { return held_calls() > answered; }));
    std::lock_guard lock(all.mutex);
    all.answers[answered].set_value(1);
  }
  for (auto& thread : threads) thread.join();
}

int64_t seconds_left(const std::vector<int64_t>&) {
  return std::chrono::duration_cast<std::chrono::seconds>(*current_call::remaining()).count();
}

TEST_F(RestingConnections, ACallThatWaitedForRoomInTheWindowDoesNotLastLongerAtItsCallee) {
  Held answers;
  held = &answers;
  const std::vector<int64_t> much(60'000);
  std::vector<Future<int64_t>> first;
  for (int i = 0; i < 2; ++i) first.push_back(group[0].async<hold>({"b", Timeout(0)}, much));
  ASSERT_TRUE(eventually([] { return held_calls() == 2; }));
  std::future<int64_t> left = std::async(std::launch::async, [&] {
    return group[0].sync<seconds_left>({"b", 10s}, much);
  });
  ASSERT_TRUE(
      eventually([&] { return group[0].debug_info().counters.at("calls.outstanding") == 3; }));

  clock->advance(6s);
  for (auto& answer : answers.answers) answer.set_value(1);

  EXPECT_LE(left.get(), 4);
  wait_all(first);
  held = nullptr;
}

TEST(ConnectionsOfAPeer, AreAllClosedAtTheEnd) {
  test::LoopbackGroup group({"a", "b"}, several(4));
  on_threads(8, [&](size_t) { EXPECT_EQ(group[0].sync<twice>("b", 1), 2); });

  group[0].shutdown_now();

  EXPECT_TRUE(eventually([&] { return serving(group[1]) == 0; }));
  on_threads(8, [&](size_t) {
    EXPECT_THAT([&] { group[0].sync<twice>("b", 1); },
                testing::Throws<Error>(testing::Property(&Error::code, ErrorCode::kShuttingDown)));
  });
}

}  // namespace weft::connections

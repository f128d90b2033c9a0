// What users rely on at the end of a group, as far as one process shows it.
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/current_call.h"
#include "weft/log.h"

namespace weft::behaviour_shutdown {

using test::eventually;
using testing::ElementsAre;
using testing::Property;
using testing::Throws;
using namespace std::chrono_literals;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }

constexpr int kWorkers = 4;
std::array<std::atomic<int>, kWorkers> hops;
std::atomic<int> ran{0};
std::atomic<int> inside{0};
std::atomic<bool> let_go{false};

int64_t twice(int64_t n) { return 2 * n; }
int next_of(const Agent& agent) { return (agent.info().id + 1) % kWorkers; }

// Nobody waits for the next hop: only the shutdown knows that the chain goes on.
void hop(int64_t ttl) {
  Agent& here = current_agent();
  ++hops[static_cast<size_t>(here.info().id)];
  if (ttl > 1) here.async<hop>(next_of(here), ttl - 1);
}
// The next hop is made by a continuation, after the answer to this one has left.
void hop_later(int64_t ttl) {
  Agent& here = current_agent();
  ++hops[static_cast<size_t>(here.info().id)];
  if (ttl <= 1) return;
  here.async<twice>(next_of(here), ttl).then([ttl](int64_t) {
    Agent& agent = current_agent();
    agent.async<hop_later>(next_of(agent), ttl - 1);
  });
}
void work(int64_t turns) {
  volatile int64_t sum = 0;
  for (int64_t i = 0; i < turns; ++i) sum = sum + i;
  ++ran;
}
void held() {
  ++inside;
  eventually([] { return let_go || current_call::cancelled(); });
  ++ran;
}

class BehaviourAtTheEnd : public testing::Test {
 protected:
  BehaviourAtTheEnd() {
    for (auto& count : hops) count = 0;
    ran = inside = 0;
    let_go = false;
  }
  // Graceful, all at once; nobody is missed.
  void shut_down() {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < group.size(); ++i) {
      threads.emplace_back(
          [&, i] { EXPECT_THAT(group[i].shutdown().lost_workers, ElementsAre()); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  test::LoopbackGroup group{{"a", "b", "c", "d"}};
};

using Behaviour04_ShutdownWaitsForAChain = BehaviourAtTheEnd;

TEST_F(Behaviour04_ShutdownWaitsForAChain, OfTwentyCallsFromEachWorker) {
  for (size_t i = 0; i < 4; ++i) group[i].async<hop>(next_of(group[i]), 20);

  shut_down();

  for (auto& count : hops) EXPECT_EQ(count, 20);
}

TEST_F(Behaviour04_ShutdownWaitsForAChain, ThatGoesOnInContinuations) {
  for (size_t i = 0; i < 4; ++i) group[i].async<hop_later>(next_of(group[i]), 20);

  shut_down();

  for (auto& count : hops) EXPECT_EQ(count, 20);
}

TEST_F(Behaviour04_ShutdownWaitsForAChain, OfContinuationsOutsideOfCalls) {
  std::atomic<int> links{0};
  std::function<void(int64_t)> go_on = [&](int64_t left) {
    ++links;
    if (left > 1)
      group[0].async<twice>("b", left).on_ready([&, left](const auto&) { go_on(left - 1); });
  };
  go_on(20);

  shut_down();

  EXPECT_EQ(links, 20);
}

using Behaviour05_ShutdownWithUnevenWorkload = BehaviourAtTheEnd;

TEST_F(Behaviour05_ShutdownWithUnevenWorkload, ServesUntilTheLastIsDone) {
  std::vector<std::thread> idle;
  for (size_t i = 1; i < 4; ++i) {
    idle.emplace_back([&, i] { EXPECT_THAT(group[i].shutdown().lost_workers, ElementsAre()); });
  }

  std::vector<Future<void>> calls;
  for (int i = 0; i < 200; ++i) calls.push_back(group[0].async<work>(1 + i % 3, 100 * i));
  wait_all(calls);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(group[0].sync<twice>(1 + i % 3, i), 2 * i);
  for (int i = 0; i < 200; ++i) group[0].async<work>(3, 100 * i);
  EXPECT_THAT(group[0].shutdown().lost_workers, ElementsAre());

  for (std::thread& thread : idle) thread.join();
  EXPECT_EQ(ran, 400);
}

TEST_F(Behaviour05_ShutdownWithUnevenWorkload, WaitsForAFunctionThatRuns) {
  const Future<void> call = group[0].async<held>("d");
  ASSERT_TRUE(eventually([] { return inside == 1; }));
  std::atomic<int> down{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { group[i].shutdown(), ++down; });

  EXPECT_EQ(group[1].sync<twice>("c", 1), 2);  // still served by those who wait to stop
  EXPECT_EQ(down, 0);
  let_go = true;

  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(call.ready());
  EXPECT_FALSE(call.error().has_value());
  EXPECT_EQ(ran, 1);
}

TEST_F(Behaviour05_ShutdownWithUnevenWorkload, FromSeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] { EXPECT_TRUE(group[i % 4].shutdown().lost_workers.empty()); });
  }
  for (std::thread& thread : threads) thread.join();

  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(group[i].shutdown().lost_workers.empty());
    group[i].shutdown_now();
    EXPECT_THAT([&] { group[i].sync<twice>("a", 1); }, fails_with(ErrorCode::kShuttingDown));
  }
}

using Behaviour06_NonGracefulShutdown = BehaviourAtTheEnd;

TEST_F(Behaviour06_NonGracefulShutdown, WithoutTraffic) {
  for (size_t i = 0; i < 4; ++i) group[i].shutdown_now();
  for (size_t i = 0; i < 4; ++i) group[i].shutdown_now();
}

TEST_F(Behaviour06_NonGracefulShutdown, WithTraffic) {
  const Future<void> to_b = group[0].async<held>("b");
  const Future<void> from_b = group[1].async<held>("c");
  const Future<void> to_self = group[1].async<held>("b");
  const Future<void> elsewhere = group[0].async<held>("d");
  ASSERT_TRUE(eventually([] { return inside == 4; }));

  group[1].shutdown_now();

  EXPECT_THAT([&] { to_b.wait(); }, fails_with(ErrorCode::kOutcomeUnknown));
  EXPECT_THAT([&] { from_b.wait(); }, fails_with(ErrorCode::kShuttingDown));
  EXPECT_THAT([&] { to_self.wait(); }, fails_with(ErrorCode::kShuttingDown));
  EXPECT_THAT([&] { group[0].sync<twice>("b", 1); }, fails_with(ErrorCode::kUnavailable));
  EXPECT_EQ(group[0].sync<twice>("d", 1), 2);
  let_go = true;
  EXPECT_NO_THROW(elsewhere.wait());
}

TEST_F(Behaviour06_NonGracefulShutdown, EndsAGracefulOneThatWaits) {
  std::atomic<bool> down{false};
  std::thread waits([&] { group[0].shutdown(), down = true; });
  EXPECT_EQ(group[1].sync<twice>("a", 1), 2);
  EXPECT_FALSE(down);

  group[0].shutdown_now();

  waits.join();
}

TEST_F(Behaviour06_NonGracefulShutdown, ByTheDestructor) {
  auto doomed = std::make_unique<test::LoopbackGroup>(std::vector<std::string>{"x", "y"});
  const Future<void> call = (*doomed)[0].async<held>("y");
  ASSERT_TRUE(eventually([] { return inside == 1; }));

  doomed.reset();

  EXPECT_THAT([&] { call.wait(); }, fails_with(ErrorCode::kShuttingDown));
}

using Behaviour07_ShutdownWithErrorsStillFinalises = BehaviourAtTheEnd;

TEST_F(Behaviour07_ShutdownWithErrorsStillFinalises, WhenMembersAreGone) {
  EXPECT_EQ(group[0].sync<twice>("d", 1), 2);
  group[3].shutdown_now();

  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_THAT(group[i].shutdown().lost_workers, ElementsAre("d")); });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_THAT([&] { group[0].sync<twice>("b", 1); }, fails_with(ErrorCode::kShuttingDown));
}

TEST_F(Behaviour07_ShutdownWithErrorsStillFinalises, WhenTheCoordinatorIsGone) {
  group[0].shutdown_now();

  std::vector<std::thread> threads;
  for (size_t i = 1; i < 4; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_THAT(group[i].shutdown().lost_workers, ElementsAre("a")); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Behaviour07_ShutdownWithErrorsStillFinalises, WhenAMemberGoesWhileOthersWait) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_THAT(group[i].shutdown().lost_workers, ElementsAre("d")); });
  }
  EXPECT_EQ(group[3].sync<twice>("a", 1), 2);

  group[3].shutdown_now();

  for (std::thread& thread : threads) thread.join();
}

// --- hints -------------------------------------------------------------------------------------

class HintsOfShutdown : public testing::Test {
 protected:
  HintsOfShutdown() {
    let_go = false;
    inside = 0;
    set_log_sink([this](LogLevel, std::string_view line) {
      std::lock_guard lock(mutex);
      lines += std::string(line) + "\n";
    });
  }
  ~HintsOfShutdown() override { set_log_sink({}); }

  /// Whether the log has `text`, while the clock is moved on.
  bool hears(const std::string& text) {
    return eventually([&] {
      clock->advance(500ms);
      std::lock_guard lock(mutex);
      return lines.find(text) != std::string::npos;
    });
  }

  std::mutex mutex;
  std::string lines;
  const std::shared_ptr<base::ManualClock> clock = std::make_shared<base::ManualClock>();
  test::LoopbackGroup group{{"a", "b"}, {}, clock};
};

TEST_F(HintsOfShutdown, NameMembersThatHaveNotCalledIt) {
  std::thread first([&] { group[0].shutdown(); });
  EXPECT_TRUE(hears("weft[a] warning: shutdown() has waited")) << lines;
  EXPECT_TRUE(hears("for b, which did not call shutdown() yet or has work left")) << lines;

  group[1].shutdown();
  first.join();
}

// The coordinator is the first by rank; the others ask it.
TEST_F(HintsOfShutdown, ComeToThoseWhoDoNotCoordinateToo) {
  std::thread second([&] { group[1].shutdown(); });
  EXPECT_TRUE(hears("weft[b] warning: shutdown() has waited")) << lines;
  EXPECT_TRUE(hears("for a, which did not call shutdown() yet or has work left")) << lines;

  group[0].shutdown();
  second.join();
}

TEST_F(HintsOfShutdown, NameCallsInFlight) {
  const Future<void> call = group[0].async<held>({"b", 0s});
  ASSERT_TRUE(eventually([] { return inside == 1; }));
  std::thread first([&] { group[0].shutdown(); });
  std::thread second([&] { group[1].shutdown(); });

  EXPECT_TRUE(hears("call of weft::behaviour_shutdown::held to b, sent for")) << lines;
  EXPECT_TRUE(hears("call of weft::behaviour_shutdown::held from a, running for")) << lines;

  let_go = true;
  first.join();
  second.join();
}

TEST(DebugInfoOfCalls, ShowsWhereEachStands) {
  let_go = false;
  inside = 0;
  test::LoopbackGroup group({"a", "b"});
  const Future<void> call = group[0].async<held>({"b", 0s});
  ASSERT_TRUE(eventually([] { return inside == 1; }));

  const auto made = group[0].debug_info().calls;
  const auto served = group[1].debug_info().calls;

  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].function, "weft::behaviour_shutdown::held");
  EXPECT_EQ(made[0].worker, "b");
  EXPECT_EQ(made[0].state, "sent");
  ASSERT_EQ(served.size(), 1u);
  EXPECT_EQ(served[0].direction, CallInFlight::Direction::kIncoming);
  EXPECT_EQ(served[0].worker, "a");
  EXPECT_EQ(served[0].state, "running");
  let_go = true;
  call.wait();
  EXPECT_TRUE(eventually([&] { return group[0].debug_info().calls.empty(); }));
}

}  // namespace weft::behaviour_shutdown

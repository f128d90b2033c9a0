// Who receives replies: callers do it themselves, as long as nobody else needs the reply at once.
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/future.h"

namespace weft::receiver_role {

using test::eventually;

int64_t twice(int64_t n) { return 2 * n; }

// Calls that end when the test says so.
struct Held {
  std::array<Promise<int64_t>, 2> answers;
  std::atomic<int> begun{0};
};
Held* held = nullptr;
Future<int64_t> answer_later(int64_t which) {
  ++held->begun;
  return held->answers.at(static_cast<size_t>(which)).future();
}

class ReceiverRole : public testing::Test {
 protected:
  void SetUp() override {
    held = &held_;
    EXPECT_EQ(caller_.sync<twice>("a", 1), 2);
  }

  static uint64_t handovers(Agent& agent) { return agent.debug_info().peers.at(0).handovers; }
  // But for a few: on a busy machine the loop may begin to receive when nothing came for a tick.
  void expect_callers_receive_themselves() {
    constexpr int64_t kCalls = 1000;
    const uint64_t before = handovers(caller_);
    for (int64_t i = 0; i < kCalls; ++i) EXPECT_EQ(caller_.sync<twice>("a", i), 2 * i);
    EXPECT_LT(handovers(caller_) - before, kCalls / 4);
  }

  // Without polling, whoever does not receive itself sleeps, and that counts.
  static Options without_polling() {
    Options options;
    options.connections_per_peer = 1;  // which the threads share
    options.spin = {};
    return options;
  }

  test::LoopbackGroup group_{{"a", "b"}, without_polling()};
  Agent& caller_ = group_[1];
  Held held_;
};

TEST_F(ReceiverRole, IsTheCallersWhileNobodyElseWaits) { expect_callers_receive_themselves(); }

TEST_F(ReceiverRole, IsTheCallersWhileTheWorkerWaitsInShutdown) {
  std::thread waits([&] { caller_.shutdown(); });
  ASSERT_TRUE(eventually([&] { return caller_.debug_info().counters.at("calls.pending") == 1; }));

  expect_callers_receive_themselves();

  group_[0].shutdown();
  waits.join();
}

TEST_F(ReceiverRole, IsTheCallersAgainAfterAContinuationRan) {
  const Future<int64_t> pending = caller_.async<answer_later>("a", 0);
  std::atomic<bool> ran{false};
  caller_.async<twice>("a", 1).then([&](int64_t) { ran = true; });
  ASSERT_TRUE(eventually([&] { return ran.load(); }));

  expect_callers_receive_themselves();

  held_.answers[0].set_value(7);
  EXPECT_EQ(pending.wait(), 7);
}

TEST_F(ReceiverRole, IsTheLoopsWhileAContinuationWaits) {
  std::atomic<int64_t> got{0};
  caller_.async<answer_later>("a", 0).then([&](int64_t n) { got = n; });
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(caller_.sync<twice>("a", i), 2 * i);

  held_.answers[0].set_value(7);
  EXPECT_TRUE(eventually([&] { return got == 7; }));
}

// Neither those who call meanwhile keep it from its reply, nor their going.
TEST_F(ReceiverRole, IsTakenPastOneThatSleepsForLong) {
  std::thread receives([&] { EXPECT_EQ(caller_.sync<answer_later>("a", 0), 7); });
  ASSERT_TRUE(eventually([&] { return held_.begun == 1; }));
  std::thread sleeps([&] { EXPECT_EQ(caller_.sync<answer_later>("a", 1), 8); });
  ASSERT_TRUE(eventually([&] { return held_.begun == 2; }));
  const auto call_for = [&](std::chrono::milliseconds time) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; std::chrono::steady_clock::now() - start < time; ++i) {
      EXPECT_EQ(caller_.sync<twice>("a", i), 2 * i);
    }
  };
  call_for(std::chrono::milliseconds(30));
  held_.answers[0].set_value(7);
  receives.join();

  call_for(std::chrono::milliseconds(30));
  held_.answers[1].set_value(8);
  sleeps.join();
}

}  // namespace weft::receiver_role

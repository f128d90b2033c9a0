// Threads that wait for calls over one connection: one of them receives for all, and in a crowd it
// also sends for all while it polls. However long they poll, everything is sent, everybody gets the
// reply, and nobody waits beyond the limit it set.
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/future.h"

namespace weft::waiting_callers {

using test::eventually;
using testing::Property;
using testing::Throws;
using namespace std::chrono_literals;

int64_t twice(int64_t n) { return 2 * n; }

// Calls that end when the test says so.
struct Held {
  std::array<Promise<int64_t>, 2> answers;
  std::atomic<int> begun{0};
};
Held* held = nullptr;
Future<int64_t> answer(int64_t which) {
  ++held->begun;
  return held->answers.at(static_cast<size_t>(which)).future();
}

// More threads than processors, which wait for one call until it is answered.
class Crowd {
 public:
  explicit Crowd(const Future<int64_t>& call) {
    const unsigned processors = std::thread::hardware_concurrency();
    for (unsigned i = 0; i < processors + 1; ++i) {
      threads_.emplace_back([call] { EXPECT_EQ(call.wait(), 7); });
    }
  }
  ~Crowd() {
    held->answers[0].set_value(7);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

class WaitingCallers : public testing::TestWithParam<std::chrono::nanoseconds> {
 protected:
  void SetUp() override { held = &held_; }

  static Options options() {
    Options options;
    options.connections_per_peer = 1;  // which the threads share
    options.spin = GetParam();
    return options;
  }
  bool begun(int calls) {
    return eventually([&] { return held_.begun == calls; });
  }

  Held held_;
};

std::string how_long(const testing::TestParamInfo<std::chrono::nanoseconds>& info) {
  if (info.param == 0ns) return "NotAtAll";
  return info.param < 1s ? "ForAMoment" : "AllTheTime";
}
INSTANTIATE_TEST_SUITE_P(Polling, WaitingCallers, testing::Values(0ns, 20us, 60s), how_long);

TEST_P(WaitingCallers, CallsOfOthersAreSentAndAnswered) {
  test::LoopbackGroup group({"a", "b"}, options());
  const Crowd crowd(group[0].async<answer>("b", 0));
  ASSERT_TRUE(begun(1));

  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(group[0].sync<twice>("b", i), 2 * i);
}

TEST_P(WaitingCallers, CallsThatNobodyWaitsForAreSent) {
  test::LoopbackGroup group({"a", "b"}, options());
  const Crowd crowd(group[0].async<answer>("b", 0));
  ASSERT_TRUE(begun(1));

  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(group[0].sync<twice>("b", i), 2 * i);

  const Future<int64_t> call = group[0].async<answer>("b", 1);
  EXPECT_TRUE(begun(2));

  held_.answers[1].set_value(8);
  EXPECT_TRUE(eventually([&] { return call.ready(); }));
}

TEST_P(WaitingCallers, ContinuationsRunWhileOthersReceive) {
  test::LoopbackGroup group({"a", "b"}, options());
  const Crowd crowd(group[0].async<answer>("b", 0));
  ASSERT_TRUE(begun(1));
  std::atomic<int64_t> sum{0};

  for (int64_t i = 0; i < 50; ++i) {
    group[0].async<twice>("b", i).then([&](int64_t n) { sum += n; });
  }

  EXPECT_TRUE(eventually([&] { return sum == 49 * 50; }));
}

TEST_P(WaitingCallers, AnotherTakesOverFromWhoLeaves) {
  for (const int64_t leaves_first : {0, 1}) {
    Held fresh;
    held = &fresh;
    test::LoopbackGroup group({"a", "b"}, options());
    std::array<std::thread, 2> threads;
    std::array<std::atomic<bool>, 2> returned{};
    for (int64_t which : {0, 1}) {
      threads[which] = std::thread([&, which] {
        EXPECT_EQ(group[0].sync<answer>("b", which), which);
        returned[which] = true;
      });
      ASSERT_TRUE(eventually([&] { return fresh.begun == which + 1; }));
    }

    for (int64_t which : {leaves_first, 1 - leaves_first}) {
      fresh.answers[which].set_value(which);
      EXPECT_TRUE(eventually([&] { return returned[which].load(); })) << which;
      threads[which].join();
    }
  }
}

TEST_P(WaitingCallers, WhoTimesOutLeavesTheOthersServed) {
  test::LoopbackGroup group({"a", "b"}, options());
  std::thread hasty([&] {
    EXPECT_THAT(
        [&] {
          group[0].sync<answer>({"b", 100ms}, 0);
        },
        Throws<Error>(Property(&Error::code, ErrorCode::kTimeout)));
  });
  ASSERT_TRUE(begun(1));
  std::thread patient([&] { EXPECT_EQ(group[0].sync<answer>("b", 1), 8); });
  ASSERT_TRUE(begun(2));

  hasty.join();
  held_.answers[1].set_value(8);
  patient.join();
}

TEST_P(WaitingCallers, NobodyWaitsBeyondItsLimit) {
  test::LoopbackGroup group({"a", "b"}, options());
  const Future<int64_t> call = group[0].async<answer>("b", 0);
  ASSERT_TRUE(begun(1));
  const auto start = std::chrono::steady_clock::now();

  // The first receives, the others watch it.
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { EXPECT_FALSE(call.wait_for(20ms)); });
  for (std::thread& thread : threads) thread.join();

  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  held_.answers[0].set_value(7);
  EXPECT_EQ(call.wait(), 7);
}

TEST_P(WaitingCallers, ManyWithAFullWindow) {
  Options few = options();
  few.window_calls = 2;
  test::LoopbackGroup group({"a", "b"}, few);
  std::atomic<int> right{0};

  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int64_t n = 0; n < 100; ++n) right += group[0].sync<twice>("b", n) == 2 * n;
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(right, 600);
}

TEST_P(WaitingCallers, LoseTheirConnectionTogether) {
  test::LoopbackGroup group({"a", "b"}, options());
  std::atomic<int> told{0};
  std::vector<std::thread> threads;
  for (int64_t which : {0, 1, 1, 0}) {
    threads.emplace_back([&, which] {
      try {
        group[0].sync<answer>("b", which);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kOutcomeUnknown) << error.what();
        ++told;
      }
    });
  }
  ASSERT_TRUE(begun(4));

  group.network().break_all();
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(told, 4);
}

}  // namespace weft::waiting_callers

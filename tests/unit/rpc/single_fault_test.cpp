// One fault in one frame of a short sequence of calls, for every kind of fault and every frame:
// each call has exactly one outcome in time, and afterwards calls work again.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <semaphore>
#include <thread>

#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "weft/log.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using transport::Fault;
using transport::FrameInFlight;
using Kind = Fault::Kind;
using Clock = std::chrono::steady_clock;

int64_t twice_under_faults(int64_t n) { return 2 * n; }

constexpr int kCalls = 3;
constexpr size_t kFrames = 1 + kCalls;  // the hello and one frame a call, in each direction
constexpr auto kTimeout = 300ms;

struct Trial {
  Fault fault;
  size_t index;
  bool from_connector;
  int most_failures;
};

std::ostream& operator<<(std::ostream& out, const Trial& trial) {
  return out << "fault " << static_cast<int>(trial.fault.kind) << " bit " << trial.fault.bit
             << " in frame " << trial.index << (trial.from_connector ? " there" : " back");
}

Options quick_options() {
  Options options;
  options.heartbeat_interval = 50ms;
  options.suspect_after = 200ms;
  options.dead_after = 500ms;
  return options;
}

// Calls succeed again, at the latest when the heartbeat noticed that a connection is of no use.
bool works_again(Agent& agent) {
  const auto limit = Clock::now() + 10s;
  while (Clock::now() < limit) {
    try {
      return agent.sync<twice_under_faults>({"b", 2s}, 21) == 42;
    } catch (const Error&) {
    }
  }
  return false;
}

void run(const Trial& trial) {
  std::atomic<bool> done{false};  // the connection that replaces a broken one counts anew
  test::LoopbackGroup group({"a", "b"}, quick_options());
  group.network().set_faults([&trial, &done](const FrameInFlight& frame) {
    const bool hit = frame.index == trial.index && frame.from_connector == trial.from_connector &&
                     !done.exchange(true);
    return hit ? trial.fault : Fault{};
  });

  std::atomic<int> outcomes{0};
  int failures = 0;
  for (int i = 0; i < kCalls; ++i) {
    const auto call = group[0].async<twice_under_faults>({"b", kTimeout}, i);
    call.on_ready([&outcomes](const Future<int64_t>&) { ++outcomes; });
    ASSERT_TRUE(call.wait_for(10s)) << trial << ", call " << i << " has no outcome";
    // Without a hello nothing is sent, so such calls are not lost: they did not run.
    if (call.error() && (trial.index > 0 || call.error()->may_have_run())) ++failures;
  }

  EXPECT_TRUE(works_again(group[0])) << trial;
  group[0].shutdown_now();
  group[1].shutdown_now();
  EXPECT_EQ(outcomes, kCalls) << trial;
  EXPECT_LE(failures, trial.most_failures) << trial;
}

// Most of a trial is waiting for time limits, so several run at a time.
void run_all(const std::vector<Trial>& trials) {
  set_log_sink([](LogLevel, std::string_view) {});
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < trials.size(); i = next++) run(trials[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  set_log_sink({});
}

std::vector<Trial> in_every_frame(const Fault& fault, int most_failures) {
  std::vector<Trial> trials;
  for (size_t index = 0; index < kFrames; ++index) {
    for (const bool from_connector : {true, false}) {
      trials.push_back({fault, index, from_connector, most_failures});
    }
  }
  return trials;
}

TEST(SingleFault, ADroppedConnectionCostsOneCall) {
  run_all(in_every_frame({Kind::kDropConnection}, 1));
}

TEST(SingleFault, ATruncatedFrameCostsOneCall) { run_all(in_every_frame({Kind::kTruncate}, 1)); }

TEST(SingleFault, ADuplicatedFrameCostsOneCall) { run_all(in_every_frame({Kind::kDuplicate}, 1)); }

TEST(SingleFault, AFlippedBitIsSurvivedWhereverItIs) {
  // Kind, flags, tensors, body bytes, id, bulk bytes, then the body.
  for (const size_t bit : {0, 2, 9, 17, 35, 64, 96, 131, 165, 192, 200, 230}) {
    run_all(in_every_frame({Kind::kFlip, 0ns, bit}, kCalls));
  }
}

// The callee waits for a body that never comes and takes what follows for it.
TEST(SingleFault, ACallThatClaimsMoreThanItHasIsNoticedByTheHeartbeat) {
  const Fault claims_64_megabytes{Kind::kFlip, 0ns, 58};
  run_all({{claims_64_megabytes, 1, true, kCalls}, {claims_64_megabytes, 2, true, kCalls}});
}

// The caller does: not even the answers to its pings, which it takes for the body, save the link.
TEST(SingleFault, AReplyThatClaimsMoreThanItHasIsNoticedByTheHeartbeat) {
  const Fault claims_64_megabytes{Kind::kFlip, 0ns, 58};
  run_all({{claims_64_megabytes, 1, false, kCalls}, {claims_64_megabytes, 2, false, kCalls}});
}

TEST(SilentPeer, IsGivenUpThoughItsSocketTakesWhatWeSend) {
  set_log_sink([](LogLevel, std::string_view) {});
  test::LoopbackGroup group({"a", "b"}, quick_options());
  EXPECT_EQ(group[0].sync<twice_under_faults>("b", 1), 2);
  group.network().set_faults([](const FrameInFlight& frame) {
    return frame.from_connector ? Fault{} : Fault{Kind::kDelay, 1h};
  });

  const auto call = group[0].async<twice_under_faults>({"b", 0s}, 2);

  EXPECT_TRUE(call.wait_for(10s)) << "a frozen peer is never declared dead";
  if (call.ready()) {
    EXPECT_EQ(call.error()->code(), ErrorCode::kPeerLost);
  }
  group[0].shutdown_now();
  group[1].shutdown_now();
  set_log_sink({});
}

Options patient_options() {
  Options options;
  options.heartbeat_interval = options.suspect_after = options.dead_after = 1h;
  return options;
}

// Delays replies of a worker; on_reply() returns once one is on its way.
class DelayedReplies {
 public:
  DelayedReplies(test::LoopbackGroup& group, base::Duration delay) : network_(group.network()) {
    network_.set_faults([this, delay](const FrameInFlight& frame) {
      if (frame.kind != 3) return Fault{};
      sent_.release();
      return Fault{Kind::kDelay, delay};
    });
  }
  ~DelayedReplies() { network_.set_faults({}); }
  bool wait() { return sent_.try_acquire_for(10s); }

 private:
  transport::LoopbackNetwork& network_;
  std::counting_semaphore<> sent_{0};
};

TEST(DelayedReply, ArrivesWhenItsTimeHasCome) {
  const auto clock = std::make_shared<base::ManualClock>();
  test::LoopbackGroup group({"a", "b"}, patient_options(), clock);
  DelayedReplies replies(group, 4s);

  const auto call = group[0].async<twice_under_faults>({"b", 5s}, 21);
  ASSERT_TRUE(replies.wait());
  EXPECT_FALSE(call.ready());
  clock->advance(4s);

  ASSERT_TRUE(call.wait_for(10s));
  EXPECT_EQ(call.wait(), 42);
}

TEST(DelayedReply, AfterTheDeadlineIsDroppedAndCounted) {
  const auto clock = std::make_shared<base::ManualClock>();
  test::LoopbackGroup group({"a", "b"}, patient_options(), clock);
  DelayedReplies replies(group, 10s);

  const auto call = group[0].async<twice_under_faults>({"b", 5s}, 21);
  ASSERT_TRUE(replies.wait());
  clock->advance(6s);
  ASSERT_TRUE(call.wait_for(10s));
  group.network().set_faults({});
  clock->advance(5s);
  const int64_t next = group[0].sync<twice_under_faults>({"b", 5s}, 4);

  EXPECT_EQ(call.error()->code(), ErrorCode::kTimeout);
  EXPECT_EQ(next, 8);
  EXPECT_EQ(group[0].debug_info().counters.at("replies.late"), 1u);
}

}  // namespace
}  // namespace weft

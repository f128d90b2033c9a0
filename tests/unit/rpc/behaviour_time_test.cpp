// Deadlines, giving up, and what is left afterwards.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/current_call.h"

namespace weft::behaviour_time {

using test::eventually;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using namespace std::chrono_literals;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }

// Calls that the test answers when it likes.
class Unanswered {
 public:
  Future<int64_t> ask() {
    std::lock_guard lock(mutex_);
    return promises_.emplace_back().future();
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return promises_.size();
  }
  void answer_all(int64_t value) {
    std::vector<Promise<int64_t>> promises;
    {
      std::lock_guard lock(mutex_);
      promises.swap(promises_);
    }
    for (auto& promise : promises) promise.set_value(value);
  }

 private:
  std::mutex mutex_;
  std::vector<Promise<int64_t>> promises_;
};

Unanswered unanswered;
std::atomic<int> started{0};
std::atomic<int> saw_cancel{0};
std::atomic<int> finished{0};
std::atomic<bool> let_go{false};

Future<int64_t> silent() { return unanswered.ask(); }
int64_t twice(int64_t n) { return 2 * n; }
std::optional<std::chrono::nanoseconds> time_left() { return current_call::remaining(); }
std::optional<std::chrono::nanoseconds> time_left_at(std::string next, std::optional<int64_t> ms) {
  std::optional<Timeout> own;
  if (ms) own = std::chrono::milliseconds(*ms);
  return current_agent().sync<time_left>({next, own});
}
Future<std::optional<std::chrono::nanoseconds>> time_left_in_continuation(std::string next) {
  return current_agent().async<twice>(next, 1).then(
      [next](int64_t) { return current_agent().async<time_left>(next); });
}
// Sees that nobody waits any more, but does not answer before it is let go.
void until_cancelled() {
  ++started;
  if (eventually([] { return current_call::cancelled(); })) ++saw_cancel;
  eventually([] { return let_go.load(); });
}
void until_cancelled_at(std::string next) { current_agent().sync<until_cancelled>(next); }
void until_let_go() {
  ++started;
  if (!eventually([] { return let_go.load(); })) return;
  if (current_call::cancelled()) ++saw_cancel;
  ++finished;
}
void fail() { throw std::runtime_error("no"); }

// A clock that stands still makes deadlines exact; heartbeats are of no interest here.
class BehaviourInTime : public testing::Test {
 protected:
  BehaviourInTime() {
    started = saw_cancel = finished = 0;
    let_go = false;
  }
  static Options without_heartbeats() {
    Options options;
    options.heartbeat_interval = options.suspect_after = 100'000h;
    options.dead_after = 200'000h;
    return options;
  }
  ~BehaviourInTime() override {
    let_go = true;
    unanswered.answer_all(0);
  }

  uint64_t counter(size_t rank, const char* name) {
    return group[rank].debug_info().counters.at(name);
  }
  bool tables_are_empty() {
    for (size_t rank = 0; rank < group.size(); ++rank) {
      for (const char* name : {"calls.pending", "calls.outstanding", "calls.serving",
                               "calls.backlog", "continuations.unfinished"}) {
        if (!eventually([&] { return counter(rank, name) == 0; }, 10s)) {
          ADD_FAILURE() << name << " on " << rank << " is " << counter(rank, name);
          return false;
        }
      }
    }
    return true;
  }
  Future<int64_t> call_silent(const Destination& to) {
    const size_t before = unanswered.count();
    Future<int64_t> call = group[0].async<silent>(to);
    EXPECT_TRUE(eventually([&] { return unanswered.count() == before + 1; }));
    return call;
  }

  std::shared_ptr<base::ManualClock> clock = std::make_shared<base::ManualClock>();
  test::LoopbackGroup group{{"a", "b", "c"}, without_heartbeats(), clock};
};

// --- 13 ----------------------------------------------------------------------------------------

using Behaviour13_Timeouts = BehaviourInTime;

TEST_F(Behaviour13_Timeouts, DefaultIsAMinute) {
  EXPECT_EQ(group[0].sync<time_left>("b"), 60s);
  const Future<int64_t> call = call_silent("b");

  clock->advance(59s);
  EXPECT_EQ(group[0].sync<twice>({"b", 0s}, 1), 2);
  EXPECT_FALSE(call.ready());
  clock->advance(1s);

  EXPECT_THAT([&] { call.wait(); }, fails_with(ErrorCode::kTimeout));
}

TEST_F(Behaviour13_Timeouts, PerCall) {
  EXPECT_EQ(group[0].sync<time_left>({"b", 50ms}), 50ms);
  EXPECT_EQ(group[0].sync<time_left>({1, 2h}), 2h);
  EXPECT_EQ(group[0].sync<time_left>({group[0].info("b"), 1us}), 1us);
  const Future<int64_t> call = call_silent({"b", 50ms});

  clock->advance(50ms);

  EXPECT_THAT([&] { call.wait(); },
              testing::ThrowsMessage<Error>(
                  testing::AllOf(HasSubstr("silent on b"), HasSubstr("no reply within 50 ms"))));
  EXPECT_TRUE(call.error()->may_have_run());
  EXPECT_EQ(counter(0, "calls.timed_out"), 1u);
}

TEST_F(Behaviour13_Timeouts, ZeroIsAsLongAsThePeerLives) {
  EXPECT_EQ(group[0].sync<time_left>({"b", 0s}), std::nullopt);
  const Future<int64_t> answered = call_silent({"b", 0s});

  clock->advance(10'000h);
  EXPECT_EQ(group[0].sync<twice>("b", 1), 2);
  EXPECT_FALSE(answered.ready());
  unanswered.answer_all(7);
  EXPECT_EQ(answered.wait(), 7);

  const Future<int64_t> lost = call_silent({"b", 0s});
  group.network().break_all();
  EXPECT_THAT([&] { lost.wait(); }, fails_with(ErrorCode::kOutcomeUnknown));
}

TEST_F(Behaviour13_Timeouts, ChangedDefaultIsForLaterCallsOnly) {
  const Future<int64_t> old = call_silent("b");

  group[0].set_default_timeout(5s);
  const Future<int64_t> fresh = call_silent("b");
  EXPECT_EQ(group[0].sync<time_left>("b"), 5s);
  EXPECT_EQ(group[1].sync<time_left>("a"), 60s);
  clock->advance(6s);

  EXPECT_THAT([&] { fresh.wait(); }, fails_with(ErrorCode::kTimeout));
  EXPECT_FALSE(old.ready());
  group[0].set_default_timeout(0s);
  EXPECT_EQ(group[0].sync<time_left>("b"), std::nullopt);
  EXPECT_FALSE(old.ready());
  clock->advance(54s);
  EXPECT_THAT([&] { old.wait(); }, fails_with(ErrorCode::kTimeout));
  EXPECT_THAT([&] { group[0].set_default_timeout(-1s); }, fails_with(ErrorCode::kInvalidArgument));
}

TEST_F(Behaviour13_Timeouts, LateReplyIsDroppedAndTheConnectionGoesOn) {
  const Future<int64_t> call = call_silent({"b", 1s});
  clock->advance(1s);
  EXPECT_THAT([&] { call.wait(); }, fails_with(ErrorCode::kTimeout));

  unanswered.answer_all(7);

  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
  EXPECT_TRUE(eventually([&] { return counter(0, "replies.late") == 1; }));
  EXPECT_EQ(call.error()->code(), ErrorCode::kTimeout);
  EXPECT_EQ(group[0].debug_info().peers.at(0).connects, 1u);
}

TEST_F(Behaviour13_Timeouts, NestedCallsInheritWhatIsLeft) {
  EXPECT_EQ(group[0].sync<time_left_at>({"b", 10s}, "c", std::nullopt), 10s);
  EXPECT_EQ(group[0].sync<time_left_at>({"b", 10s}, "c", 3'600'000), 10s);
  EXPECT_EQ(group[0].sync<time_left_at>({"b", 10s}, "c", 0), 10s);
  EXPECT_EQ(group[0].sync<time_left_at>({"b", 10s}, "c", 1000), 1s);
  EXPECT_EQ(group[0].sync<time_left_at>({"b", 0s}, "c", std::nullopt), 60s);
  EXPECT_EQ(group[0].sync<time_left_at>({"b", 0s}, "c", 0), std::nullopt);
  EXPECT_EQ(group[0].sync<time_left_in_continuation>({"b", 10s}, "c"), 10s);
  EXPECT_EQ(current_call::remaining(), std::nullopt);
}

TEST(Behaviour13_TimeoutsByTheRealClock, SyncAndAsync) {
  test::LoopbackGroup group({"a", "b"});
  const auto began = std::chrono::steady_clock::now();

  EXPECT_THAT([&] { group[0].sync<silent>({"b", 50ms}); }, fails_with(ErrorCode::kTimeout));
  const Future<int64_t> unwatched = group[0].async<silent>({"b", 50ms});
  EXPECT_FALSE(unwatched.wait_for(1ms));
  EXPECT_TRUE(eventually([&] { return unwatched.ready(); }, 5s));
  EXPECT_THAT([&] { unwatched.wait(); }, fails_with(ErrorCode::kTimeout));
  Promise<ErrorCode> told;
  group[0].async<silent>({"b", 50ms}).on_ready([&](const auto& call) {
    told.set_value(call.error()->code());
  });
  EXPECT_EQ(told.future().wait(), ErrorCode::kTimeout);

  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_GE(took, 150ms);
  EXPECT_LT(took, 5s);
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
  unanswered.answer_all(0);
}

// --- 14 ----------------------------------------------------------------------------------------

using Behaviour14_TablesAreEmptyAfterwards = BehaviourInTime;

TEST_F(Behaviour14_TablesAreEmptyAfterwards, OfAnswersAndErrors) {
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 100; ++i) calls.push_back(group[0].async<twice>(i % 2 ? "b" : "c", i));
  EXPECT_THAT([&] { group[0].sync<fail>("b"); }, fails_with(ErrorCode::kRemoteError));
  EXPECT_EQ(group[0].sync<time_left_at>("b", "c", std::nullopt), 60s);
  wait_all(calls);

  EXPECT_TRUE(tables_are_empty());
  EXPECT_EQ(counter(0, "calls.started"), 102u);
}

TEST_F(Behaviour14_TablesAreEmptyAfterwards, OfCallsNobodyWaitedFor) {
  for (int64_t i = 0; i < 100; ++i) group[0].async<twice>(i % 2 ? "b" : "c", i);
  for (int64_t i = 0; i < 10; ++i) group[0].async<fail>("b");

  EXPECT_TRUE(tables_are_empty());
}

TEST_F(Behaviour14_TablesAreEmptyAfterwards, OfTimeouts) {
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(call_silent({"b", std::chrono::seconds(i + 1)}));
  EXPECT_EQ(counter(0, "calls.pending"), 20u);
  EXPECT_EQ(counter(1, "calls.serving"), 20u);

  clock->advance(10s);
  EXPECT_TRUE(eventually([&] { return counter(0, "calls.pending") == 10; }));
  EXPECT_FALSE(calls[10].ready());
  clock->advance(10s);

  EXPECT_TRUE(eventually([&] { return counter(0, "calls.pending") == 0; }));
  unanswered.answer_all(0);
  EXPECT_TRUE(tables_are_empty());
}

TEST_F(Behaviour14_TablesAreEmptyAfterwards, OfLostConnections) {
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(call_silent("b"));

  group.network().break_all();
  for (auto& call : calls)
    EXPECT_THAT([&] { call.wait(); }, fails_with(ErrorCode::kOutcomeUnknown));
  unanswered.answer_all(0);

  EXPECT_TRUE(tables_are_empty());
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
}

TEST_F(Behaviour14_TablesAreEmptyAfterwards, OfCancelledCalls) {
  const Future<int64_t> call = call_silent("b");

  call.cancel();
  call.cancel();
  EXPECT_TRUE(call.ready());
  EXPECT_THAT([&] { call.wait(); }, fails_with(ErrorCode::kCancelled));
  unanswered.answer_all(0);

  EXPECT_TRUE(tables_are_empty());
  const Future<int64_t> done = group[0].async<twice>("b", 2);
  EXPECT_EQ(done.wait(), 4);
  done.cancel();
  EXPECT_EQ(done.wait(), 4);
}

// --- giving up -----------------------------------------------------------------------------------

using Behaviour13_GivingUp = BehaviourInTime;

TEST_F(Behaviour13_GivingUp, CancelIsSeenByTheFunctionAndWhatItCalled) {
  const Future<void> direct = group[0].async<until_cancelled>("b");
  const Future<void> nested = group[0].async<until_cancelled_at>("b", "c");
  ASSERT_TRUE(eventually([] { return started == 2; }));

  direct.cancel();
  nested.cancel();

  EXPECT_THAT([&] { nested.wait(); }, fails_with(ErrorCode::kCancelled));
  EXPECT_TRUE(eventually([] { return saw_cancel == 2; }));
}

TEST_F(Behaviour13_GivingUp, TimeoutIsSeenByTheFunctionAndWhatItCalled) {
  const Future<void> direct = group[0].async<until_cancelled>({"b", 5s});
  const Future<void> nested = group[0].async<until_cancelled_at>({"b", 5s}, "c");
  ASSERT_TRUE(eventually([] { return started == 2; }));

  clock->advance(5s);

  EXPECT_THAT([&] { direct.wait(); }, fails_with(ErrorCode::kTimeout));
  // Here the call in between has timed out as well and may have said so first.
  EXPECT_THAT([&] { nested.wait(); }, testing::ThrowsMessage<Error>(HasSubstr("kTimeout")));
  EXPECT_TRUE(eventually([] { return saw_cancel == 2; }));
}

TEST_F(Behaviour13_GivingUp, DeathOfTheCallerIsSeenByTheFunction) {
  const Future<void> call = group[0].async<until_cancelled_at>("b", "c");
  ASSERT_TRUE(eventually([] { return started == 1; }));

  group[0].shutdown_now();

  EXPECT_THAT([&] { call.wait(); }, fails_with(ErrorCode::kShuttingDown));
  EXPECT_TRUE(eventually([] { return saw_cancel == 1; }));
}

TEST_F(Behaviour13_GivingUp, DroppingAFutureIsNotGivingUp) {
  { const Future<void> dropped = group[0].async<until_let_go>("b"); }
  ASSERT_TRUE(eventually([] { return started == 1; }));
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);

  let_go = true;

  EXPECT_TRUE(eventually([] { return finished == 1; }));
  EXPECT_EQ(saw_cancel, 0);
  EXPECT_TRUE(tables_are_empty());
}

}  // namespace weft::behaviour_time

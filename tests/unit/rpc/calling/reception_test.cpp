// Who receives on a connection, one decision at a time.
// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/calling/reception.h"

#include <gtest/gtest.h>

namespace weft::rpc::reception_test {
namespace {

struct Waiter {
  bool served = false;
};
using Core = Reception<Waiter>;
using Receiver = Core::Receiver;
using Kind = Core::Successor::Kind;

bool is_served(const Waiter& waiter) { return waiter.served; }

class ReceptionTest : public testing::Test {
 protected:
  ReceptionTest() {
    core.on_connecting();
    core.on_connected();
  }
  Kind pass_on(Core::Term term) { return core.end(term, is_served).kind; }
  void let_ticks_pass(int number) {
    for (int i = 0; i < number; ++i) core.on_tick(true, false);
  }

  ReceptionView view{4};
  Core core{view};
  Waiter one, two;
};

TEST_F(ReceptionTest, NobodyBeginsBeforeTheConnectionStands) {
  ReceptionView of_fresh{4};
  Core fresh{of_fresh};
  EXPECT_FALSE(fresh.may_begin());
  fresh.on_connecting();
  EXPECT_EQ(fresh.receiver(), Receiver::kLoop);
  EXPECT_FALSE(fresh.may_begin());
  fresh.on_connected();
  EXPECT_TRUE(fresh.may_begin());
}

TEST_F(ReceptionTest, ACallerTakesOverFromTheLoopUnlessItReads) {
  EXPECT_TRUE(core.begin_on_loop());
  EXPECT_FALSE(core.may_begin());
  EXPECT_FALSE(core.may_glance());
  core.end_on_loop();
  EXPECT_TRUE(core.may_begin());
  core.begin(true);
  EXPECT_FALSE(core.begin_on_loop()) << "a caller reads";
  EXPECT_FALSE(core.may_begin());
}

TEST_F(ReceptionTest, ACallerLeavesTheLoopToThoseWhoSleptJustNow) {
  core.enter_line(one);
  EXPECT_FALSE(core.may_begin());
  EXPECT_TRUE(core.may_glance());
  let_ticks_pass(10);
  EXPECT_TRUE(core.may_begin());
}

TEST_F(ReceptionTest, OneWhoSleepsTakesOver) {
  const auto term = core.begin(true);
  core.enter_line(one);
  const auto successor = core.end(term, is_served);
  EXPECT_EQ(successor.kind, Kind::kCaller);
  EXPECT_EQ(successor.waiter, &one);
  EXPECT_EQ(core.receiver(), Receiver::kNobody);
  EXPECT_TRUE(core.may_begin());
}

TEST_F(ReceptionTest, TheLoopReceivesForSeveral) {
  const auto term = core.begin(true);
  core.enter_line(one);
  core.enter_line(two);
  EXPECT_EQ(pass_on(term), Kind::kLoop);
  EXPECT_EQ(core.receiver(), Receiver::kLoop);
}

TEST_F(ReceptionTest, TheLoopReceivesForThoseWhoAreTold) {
  const auto term = core.begin(true);
  core.add_listener();
  EXPECT_EQ(pass_on(term), Kind::kLoop);
  core.remove_listener();
  EXPECT_EQ(pass_on(core.begin(true)), Kind::kPulse);
}

TEST_F(ReceptionTest, TheLoopReceivesForOneWhoSleepsLong) {
  const auto term = core.begin(true);
  core.enter_line(one);
  let_ticks_pass(10);
  EXPECT_EQ(pass_on(term), Kind::kLoop);
}

TEST_F(ReceptionTest, WhoIsServedNeedsNobody) {
  const auto term = core.begin(true);
  core.enter_line(one);
  core.enter_line(two);
  one.served = true;
  const auto successor = core.end(term, is_served);
  EXPECT_EQ(successor.kind, Kind::kCaller);
  EXPECT_EQ(successor.waiter, &two);
  two.served = true;
  EXPECT_EQ(pass_on(core.begin(true)), Kind::kPulse);
}

TEST_F(ReceptionTest, SeveralMayWaitForOneCall) {
  core.begin(true);
  core.enter_line(one);
  core.enter_line(one);
  EXPECT_TRUE(core.leave_line(one));
  EXPECT_TRUE(core.leave_line(one));
  EXPECT_FALSE(core.leave_line(one));
  core.enter_line(one);
  core.enter_line(one);
  core.clear_line_of(one);
  EXPECT_FALSE(core.leave_line(one));
}

TEST_F(ReceptionTest, ARoleOfAnEarlierConnectionMeansNothing) {
  const auto earlier = core.begin(true);
  core.on_lost();
  EXPECT_EQ(core.receiver(), Receiver::kNobody);
  EXPECT_FALSE(core.may_begin());
  core.on_connecting();
  core.on_connected();
  const auto now = core.begin(false);
  core.set_polling(earlier, true);
  EXPECT_EQ(core.receiver(), Receiver::kSleepingCaller);
  EXPECT_EQ(pass_on(earlier), Kind::kNone);
  EXPECT_EQ(core.receiver(), Receiver::kSleepingCaller);
  core.set_polling(now, true);
  EXPECT_EQ(core.receiver(), Receiver::kPollingCaller);
}

TEST_F(ReceptionTest, ThePulseHasTheLoopWatchWhatNobodyReceives) {
  EXPECT_EQ(pass_on(core.begin(true)), Kind::kPulse);
  core.on_received();
  EXPECT_FALSE(core.on_tick(/*has_calls=*/true, false).loop_begins) << "replies come";
  const auto tick = core.on_tick(true, false);
  EXPECT_TRUE(tick.loop_begins);
  EXPECT_FALSE(tick.goes_on);
  EXPECT_TRUE(core.on_tick(true, /*has_put_off=*/true).goes_on);
}

TEST_F(ReceptionTest, ThePulseWaitsLongerIfNothingIsUnanswered) {
  EXPECT_EQ(pass_on(core.begin(true)), Kind::kPulse);
  for (int i = 0; i < 9; ++i) {
    const auto tick = core.on_tick(/*has_calls=*/false, false);
    EXPECT_FALSE(tick.loop_begins);
    EXPECT_TRUE(tick.goes_on);
  }
  EXPECT_TRUE(core.on_tick(false, false).loop_begins);
}

TEST_F(ReceptionTest, TheLoopIsCalledOnlyIfNobodyReceives) {
  EXPECT_FALSE(core.call_loop()) << "it watches already";
  const auto term = core.begin(true);
  EXPECT_FALSE(core.call_loop());
  EXPECT_EQ(pass_on(term), Kind::kPulse);
  EXPECT_TRUE(core.call_loop());
  core.on_lost();
  EXPECT_FALSE(core.call_loop());
}

TEST_F(ReceptionTest, WhoWrites) {
  const Core::Queued first{.calls = 1, .unsent_bytes = 100, .blocked = false, .caller_waits = true};
  Core::Queued async = first;
  async.caller_waits = false;
  Core::Queued one_of_many = async;
  one_of_many.calls = Core::kSentAtOnce;

  EXPECT_FALSE(core.puts_off(first));
  EXPECT_FALSE(core.puts_off(async));
  EXPECT_TRUE(core.puts_off(one_of_many));
  one_of_many.unsent_bytes = Core::kEnoughToSend;
  EXPECT_FALSE(core.puts_off(one_of_many)) << "enough for a system call";
  one_of_many.unsent_bytes = 100;
  one_of_many.blocked = true;
  EXPECT_FALSE(core.puts_off(one_of_many)) << "the loop is asked to watch for room";
}

TEST_F(ReceptionTest, TheLoopWritesWhatIsQueuedWhileItReads) {
  core.begin_on_loop();
  EXPECT_TRUE(core.puts_off({.calls = 2, .caller_waits = true}));
  EXPECT_FALSE(core.puts_off({.calls = 1, .caller_waits = true})) << "it may find out an end";
  EXPECT_FALSE(core.sends_before_sleeping());
  core.end_on_loop();
  EXPECT_TRUE(core.sends_before_sleeping());
}

TEST_F(ReceptionTest, ACallerThatPollsWritesForOthersWhereCpusAreFew) {
  const Core::Queued queued{.calls = 2, .unsent_bytes = 100, .caller_waits = true};
  const auto term = core.begin(true);
  EXPECT_FALSE(core.puts_off(queued));
  for (int i = 0; i < 3; ++i) view.begin_lingering();
  EXPECT_TRUE(view.is_crowded());
  EXPECT_TRUE(core.puts_off(queued));
  EXPECT_FALSE(core.sends_before_lingering());
  core.set_polling(term, false);
  EXPECT_FALSE(core.puts_off(queued)) << "it sleeps";
  EXPECT_TRUE(core.sends_before_lingering());
  view.end_lingering();
  EXPECT_FALSE(view.is_crowded());
}

}  // namespace
}  // namespace weft::rpc::reception_test

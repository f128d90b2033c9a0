// SPDX-License-Identifier: BSD-3-Clause
#include "base/crew.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <latch>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "weft/future.h"

namespace weft::base {
namespace {

using namespace std::chrono_literals;

// Shared: a piece may still look at it when the test is over.
class Signal {
 public:
  explicit Signal(int times = 1) : latch_(std::make_shared<std::latch>(times)) {}
  void give() const { latch_->count_down(); }
  void wait() const { latch_->wait(); }
  bool given() const { return latch_->try_wait(); }

 private:
  std::shared_ptr<std::latch> latch_;
};

// Waits for posted pieces of user code and runs them one after the other.
class ToyLoop final : public CrewLoop {
 public:
  void post(std::function<void()> piece) {
    std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
    changed_.notify_one();
  }

  void lead() override {
    do {
      std::function<void()> piece;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return crew->stopping() || !pieces_.empty(); });
        if (crew->stopping()) return;
        piece = std::move(pieces_.front());
        pieces_.pop_front();
      }
      if (takes_slots) crew->take_slot();
      crew->enter_user_code();
      piece();
    } while (crew->leave_user_code());
  }
  void interrupt() override {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  void on_slow_user_code() override { ++slow; }
  void on_end() override { ++ends; }

  Crew* crew = nullptr;
  bool takes_slots = false;
  std::atomic<int> slow{0};
  std::atomic<int> ends{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> pieces_;
};

class ToyBacklog final : public CrewBacklog {
 public:
  void add(std::function<void()> piece) {
    {
      std::lock_guard lock(mutex_);
      pieces_.push_back(std::move(piece));
      waiting_ = pieces_.size();
    }
    crew->call_for_help();
  }
  size_t waiting() const override { return waiting_; }
  bool run_short() override { return run_one(); }
  bool run_one() override {
    std::function<void()> piece;
    {
      std::lock_guard lock(mutex_);
      if (pieces_.empty()) return false;
      piece = std::move(pieces_.front());
      pieces_.pop_front();
      waiting_ = pieces_.size();
    }
    crew->found_work();
    piece();
    return true;
  }

  Crew* crew = nullptr;

 private:
  std::mutex mutex_;
  std::atomic<size_t> waiting_{0};
  std::deque<std::function<void()>> pieces_;
};

class CrewTest : public testing::Test {
 protected:
  void start(Crew::Limits limits) {
    crew_ = std::make_shared<Crew>("toy", limits, pulse_, keepalive_);
    crew_->set_backlog(*backlog_);
    backlog_->crew = crew_.get();
    for (auto& loop : {loop_, second_loop_}) {
      loop->crew = crew_.get();
      crew_->add(*loop);
    }
    crew_->start(*loop_);
  }
  // Ticks as the pulse would, until `condition` holds.
  template <typename F>
  void tick_until(F condition) {
    while (!condition()) {
      crew_->on_tick();
      std::this_thread::sleep_for(1ms);
    }
  }
  // Runs `piece` on the crew and waits for it.
  void run(std::function<void()> piece) {
    const Signal done;
    loop_->post([done, piece = std::move(piece)] {
      piece();
      done.give();
    });
    done.wait();
  }
  void TearDown() override {
    EXPECT_TRUE(crew_->stop(10s));
    EXPECT_EQ(crew_->running(), 0u);
    EXPECT_EQ(crew_->threads(), 0u);
  }

  Pulse pulse_;  // stands still: tests tick themselves
  std::shared_ptr<int> keepalive_ = std::make_shared<int>();
  std::shared_ptr<ToyLoop> loop_ = std::make_shared<ToyLoop>();
  std::shared_ptr<ToyLoop> second_loop_ = std::make_shared<ToyLoop>();
  std::shared_ptr<ToyBacklog> backlog_ = std::make_shared<ToyBacklog>();
  std::shared_ptr<Crew> crew_;
};

TEST_F(CrewTest, QuickPiecesStayOnOneThread) {
  start({});
  std::set<std::thread::id> threads;

  for (int i = 0; i < 100; ++i) run([&threads] { threads.insert(std::this_thread::get_id()); });

  EXPECT_EQ(threads.size(), 1u);
  EXPECT_EQ(crew_->threads(), 1u);
}

TEST_F(CrewTest, APieceThatBlocksGivesTheLeadAway) {
  start({});
  Promise<int> promise;
  Promise<int> result;

  loop_->post([&] { result.set_value(promise.future().wait()); });
  loop_->post([&] { promise.set_value(42); });

  EXPECT_EQ(result.future().wait(), 42);
  EXPECT_TRUE(crew_->stop(10s));
}

TEST_F(CrewTest, AnyNumberOfPiecesMayBlock) {
  start({.running = 2});
  constexpr size_t kPieces = 200;
  std::vector<Promise<int>> promises(kPieces + 1);

  for (size_t i = 0; i < kPieces; ++i) {
    loop_->post([&promises, i] { promises[i].set_value(promises[i + 1].future().wait() + 1); });
  }
  loop_->post([&promises] { promises[kPieces].set_value(0); });

  EXPECT_EQ(promises[0].future().wait(), static_cast<int>(kPieces));
  EXPECT_TRUE(crew_->stop(10s));
}

TEST_F(CrewTest, ASlowPieceLosesTheLeadToThePulse) {
  start({});
  const Signal slow_runs, quick_ran;
  loop_->post([=] {
    slow_runs.give();
    quick_ran.wait();  // a wait that nobody announces
  });
  slow_runs.wait();

  loop_->post([=] { quick_ran.give(); });
  crew_->on_tick();
  EXPECT_FALSE(quick_ran.given()) << "one tick is too early to tell";
  crew_->on_tick();

  quick_ran.wait();
}

TEST_F(CrewTest, ThePulseLeavesQuickPiecesAlone) {
  start({});

  for (int i = 0; i < 100; ++i) {
    run([] {});
    crew_->on_tick();
  }

  EXPECT_EQ(crew_->threads(), 1u);
}

TEST_F(CrewTest, APieceMayGiveTheLeadUpBeforehand) {
  start({});
  const Signal quick_ran, slow_ran;

  loop_->post([=, crew = crew_.get()] {
    crew->give_up_lead();
    quick_ran.wait();
    slow_ran.give();
  });
  loop_->post([=] { quick_ran.give(); });

  slow_ran.wait();
}

TEST_F(CrewTest, CalledForHelpAThreadWorksOnTheBacklog) {
  start({});
  const Signal done(10);
  std::mutex mutex;
  std::set<std::thread::id> helpers;
  std::thread::id leader;
  run([&leader] { leader = std::this_thread::get_id(); });

  for (int i = 0; i < 10; ++i) {
    backlog_->add([&, done] {
      {
        std::lock_guard lock(mutex);
        helpers.insert(std::this_thread::get_id());
      }
      done.give();
    });
  }
  done.wait();

  std::lock_guard lock(mutex);
  EXPECT_FALSE(helpers.contains(leader));
}

TEST_F(CrewTest, SeveralLoopsAreLedAtTheSameTime) {
  start({});
  crew_->start(*second_loop_);
  crew_->start(*second_loop_);  // is led already
  const Signal first_runs, second_ran;

  loop_->post([=] {
    first_runs.give();
    second_ran.wait();
  });
  first_runs.wait();
  second_loop_->post([=] { second_ran.give(); });

  second_ran.wait();
  EXPECT_EQ(crew_->threads(), 2u);
}

TEST_F(CrewTest, NoMoreTasksThanSlotsRunAtTheSameTime) {
  start({.running = 2});
  constexpr int kTasks = 40;
  std::atomic<int> running{0}, most{0};
  const Signal done(kTasks);

  for (int i = 0; i < kTasks; ++i) {
    backlog_->add([&, done] {
      const int now = ++running;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      const auto end = std::chrono::steady_clock::now() + 1ms;
      while (std::chrono::steady_clock::now() < end) {
      }
      --running;
      done.give();
    });
  }
  done.wait();

  EXPECT_LE(most, 2);
}

TEST_F(CrewTest, TasksThatBlockWhereNobodySeesItMakeRoom) {
  start({.running = 2});
  constexpr int kTasks = 64;
  const Signal all_there(kTasks), done(kTasks);

  for (int i = 0; i < kTasks; ++i) {
    backlog_->add([=] {
      all_there.give();
      all_there.wait();
      done.give();
    });
  }

  tick_until([&] { return done.given(); });
}

TEST_F(CrewTest, TheLeaderHasASlotTooAndLosesItWhenItBlocksUnseen) {
  start({.running = 1});
  loop_->takes_slots = true;
  const Signal leader_runs, release, done;
  loop_->post([=] {
    leader_runs.give();
    release.wait();
  });
  leader_runs.wait();
  EXPECT_EQ(crew_->running(), 1u);

  backlog_->add([=] { done.give(); });
  EXPECT_FALSE(done.given());
  tick_until([&] { return done.given(); });

  EXPECT_EQ(loop_->slow, 1);
  release.give();
}

TEST_F(CrewTest, ABacklogThatStarvesGetsAThreadFromThePulse) {
  start({.running = 1});
  const Signal runs, done, stop;
  backlog_->add([=] {
    runs.give();
    while (!stop.given()) {  // uses a CPU, so its slot stays in use
    }
  });
  runs.wait();

  backlog_->add([=] { done.give(); });
  tick_until([&] { return done.given(); });

  stop.give();
}

TEST_F(CrewTest, ATaskThatBlocksInWeftMakesRoomAtOnce) {
  start({.running = 1});
  Promise<int> promise;
  const Signal done;

  backlog_->add([=, future = promise.future()] {
    future.wait();
    done.give();
  });
  backlog_->add([&promise] { promise.set_value(1); });

  done.wait();
  EXPECT_TRUE(crew_->stop(10s));  // before the promise ends
}

TEST_F(CrewTest, AThreadThatEndsInUserCodeLeavesNothingBehind) {
  start({.running = 1});
  loop_->takes_slots = true;
  loop_->post([] { pthread_exit(nullptr); });

  run([] {});

  while (crew_->threads() > 1) std::this_thread::yield();
  EXPECT_LE(crew_->running(), 1u);
}

TEST_F(CrewTest, TheLastThreadTellsTheLoopsThatItIsOver) {
  start({});
  crew_->start(*second_loop_);

  EXPECT_TRUE(crew_->stop(10s));

  EXPECT_EQ(loop_->ends, 1);
  EXPECT_EQ(second_loop_->ends, 1);
}

TEST_F(CrewTest, OutOfThreadsALoopIsStillLed) {
  start({.threads = 2});
  Promise<void> first, second;
  const Signal both_block(2), third_ran;
  for (const auto& future : {first.future(), second.future()}) {
    loop_->post([=] {
      both_block.give();
      future.wait();
    });
  }
  both_block.wait();

  EXPECT_TRUE(crew_->out_of_threads());
  loop_->post([=] { third_ran.give(); });

  third_ran.wait();
  EXPECT_EQ(crew_->threads(), 3u);
  first.set_value();
  second.set_value();
}

TEST_F(CrewTest, OutOfThreadsTheBacklogWaits) {
  start({.threads = 2});
  Promise<void> release;
  const Signal blocks, done;
  backlog_->add([=, future = release.future()] {
    blocks.give();
    future.wait();
  });
  blocks.wait();

  backlog_->add([=] { done.give(); });
  for (int i = 0; i < 100; ++i) crew_->on_tick();
  EXPECT_FALSE(done.given());
  EXPECT_EQ(crew_->threads(), 2u);

  release.set_value();
  done.wait();
}

TEST_F(CrewTest, OfThreadsThatEndTogetherOneTellsTheLoops) {
  for (int i = 0; i < 200; ++i) {
    auto crew = std::make_shared<Crew>("toy", Crew::Limits{}, pulse_, keepalive_);
    std::vector<std::shared_ptr<ToyLoop>> loops;
    for (int j = 0; j < 4; ++j) {
      loops.push_back(std::make_shared<ToyLoop>());
      loops.back()->crew = crew.get();
      crew->add(*loops.back());
    }
    for (auto& each : loops) crew->start(*each);

    EXPECT_TRUE(crew->stop(10s));

    for (auto& each : loops) EXPECT_EQ(each->ends, 1);
  }
  start({});
}

TEST_F(CrewTest, IdleThreadsAreFew) {
  start({.standing_by = 2});
  const Signal all(20);
  std::vector<Promise<void>> promises(20);
  for (auto& promise : promises) {
    loop_->post([all, future = promise.future()] {
      all.give();
      future.wait();
    });
  }
  all.wait();

  for (auto& promise : promises) promise.set_value();
  while (crew_->threads() > 3) std::this_thread::yield();  // the leader and two that stand by

  EXPECT_LE(crew_->idle(), 2u);
}

TEST_F(CrewTest, StopGivesUpOnAThreadThatIsStuckAndItEndsByItself) {
  start({});
  const Signal stuck, release;
  const std::weak_ptr<int> kept = keepalive_;
  loop_->post([=] {
    stuck.give();
    release.wait();
  });
  stuck.wait();

  EXPECT_FALSE(crew_->stop(20ms));
  keepalive_.reset();
  EXPECT_FALSE(kept.expired()) << "the stuck thread keeps what it may touch";
  release.give();

  EXPECT_TRUE(crew_->stop(10s));
}

TEST_F(CrewTest, StoppedItTakesNoMoreWork) {
  start({});
  EXPECT_TRUE(crew_->stop(10s));

  crew_->on_tick();

  EXPECT_EQ(crew_->threads(), 0u);
}

}  // namespace
}  // namespace weft::base

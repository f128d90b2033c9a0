// SPDX-License-Identifier: BSD-3-Clause
#include "base/crew.h"

#include <deque>
#include <functional>
#include <latch>
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
  void add_backlog(std::function<void()> piece) {
    std::lock_guard lock(mutex_);
    backlog_.push_back(std::move(piece));
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
      crew->enter_user_code();
      piece();
    } while (crew->leave_user_code());
  }
  void interrupt() override {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  bool run_from_backlog() override {
    std::function<void()> piece;
    {
      std::lock_guard lock(mutex_);
      if (backlog_.empty()) return false;
      piece = std::move(backlog_.front());
      backlog_.pop_front();
    }
    piece();
    return true;
  }
  bool backlog_starves() override {
    std::lock_guard lock(mutex_);
    return !backlog_.empty();
  }

  Crew* crew = nullptr;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> pieces_;
  std::deque<std::function<void()>> backlog_;
};

class CrewTest : public testing::Test {
 protected:
  void start(Crew::Limits limits) {
    loop_ = std::make_shared<ToyLoop>();
    crew_ = std::make_shared<Crew>("toy", limits, *loop_, pulse_, keepalive_);
    loop_->crew = crew_.get();
    crew_->start();
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
  std::shared_ptr<ToyLoop> loop_;
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
  std::set<std::thread::id> helpers;
  std::thread::id leader;
  run([&leader] { leader = std::this_thread::get_id(); });
  for (int i = 0; i < 10; ++i) {
    loop_->add_backlog([&helpers, done] {
      helpers.insert(std::this_thread::get_id());
      done.give();
    });
  }

  crew_->on_tick();
  done.wait();

  EXPECT_EQ(helpers.size(), 1u);
  EXPECT_FALSE(helpers.contains(leader));
}

TEST_F(CrewTest, ABacklogThatStarvesGetsAThreadFromThePulse) {
  start({.running = 1});
  const Signal blocked, release, done;
  loop_->add_backlog([=] {
    blocked.give();
    release.wait();
  });
  loop_->add_backlog([=] { done.give(); });
  crew_->on_tick();
  blocked.wait();

  crew_->on_tick();

  done.wait();
  release.give();
}

TEST_F(CrewTest, OutOfThreadsTheFirstOneDoneLeads) {
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
  loop_->post([=] { third_ran.give(); });
  EXPECT_FALSE(third_ran.given());

  second.set_value();

  third_ran.wait();
  EXPECT_LE(crew_->threads(), 2u);
  first.set_value();
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

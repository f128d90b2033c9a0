// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/io/io_loop.h"

#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include <latch>
#include <memory>
#include <system_error>
#include <thread>

#include <gtest/gtest.h>

#include "base/pulse.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

class IoLoopTest : public testing::Test {
 protected:
  static constexpr size_t kSlots = 4;

  IoLoopTest() {
    base::Crew::Limits limits;
    limits.running = kSlots;
    crew_ = std::make_shared<base::Crew>("test", limits, pulse_, keepalive_);
    loop.set_crew(crew_);
    pulse_.add([this] { crew_->on_tick(); });
  }
  ~IoLoopTest() override { stop(); }

  void start_crew() { crew_->start(loop); }
  void start() {
    start_crew();
    pulse_.start();
  }
  void stop_crew() {
    EXPECT_TRUE(crew_->stop(10s));
    pulse_.stop();
  }
  void stop() {
    stop_crew();
    loop.finish();
  }

  IoLoop loop{std::make_shared<base::SteadyClock>()};

 private:
  base::Pulse pulse_;
  std::shared_ptr<void> keepalive_ = std::make_shared<int>();
  std::shared_ptr<base::Crew> crew_;
};

TEST_F(IoLoopTest, LongTasksRunBesideEachOther) {
  start();
  const auto all = std::make_shared<std::latch>(kSlots);
  const auto over = std::make_shared<std::latch>(kSlots);
  for (size_t i = 0; i < kSlots; ++i) {
    loop.post_long_task([all, over] {
      all->arrive_and_wait();
      over->count_down();
    });
  }

  over->wait();
}

TEST_F(IoLoopTest, LongTasksDoNotHoldUpTheLoop) {
  start();
  const auto posted = std::make_shared<std::latch>(1);
  const auto over = std::make_shared<std::latch>(1);
  loop.post_long_task([posted, over] {
    posted->wait();
    over->count_down();
  });
  loop.post_task([posted] { posted->count_down(); });

  over->wait();
}

TEST_F(IoLoopTest, CountsLongTasksUntilTheyHaveReturned) {
  start();
  const auto go = std::make_shared<std::latch>(1);
  for (size_t i = 0; i < 2 * kSlots; ++i) loop.post_long_task([go] { go->wait(); });
  EXPECT_EQ(loop.unfinished(), 2 * kSlots);

  go->count_down();
  while (loop.unfinished() > 0) std::this_thread::yield();
}

class TimedClient final : public IoClient {
 public:
  void on_event(bool, bool) override {}
  void on_time(base::Time) override { rang.count_down(); }
  std::latch rang{1};
};

size_t memory_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// A time that is earlier than all before it enters the queue anew.
TEST_F(IoLoopTest, TimersTakeNoMemoryHoweverOftenTheyAreSet) {
  const auto restless = std::make_shared<TimedClient>();
  const auto other = std::make_shared<TimedClient>();
  const uint64_t restless_token = loop.add(restless);
  const uint64_t other_token = loop.add(other);
  const base::Time now = loop.clock().now();
  loop.set_due(*other, now + 1ms);
  const size_t used = memory_in_use();

  for (int i = 0; i < 100'000; ++i) loop.set_due(*restless, now + 1h - i * 1us);

  EXPECT_LT(memory_in_use(), used + 64 * 1024);
  start();
  other->rang.wait();
  loop.set_due(*restless, now);
  restless->rang.wait();
  loop.remove(other_token);
  loop.remove(restless_token);
}

// While it exists no thread can be started: each would need more memory than there are addresses.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    pthread_attr_setstacksize(&attributes, size_t{1} << 50);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST_F(IoLoopTest, WhereNoThreadCanBeHadTheLeaderRunsLongTasks) {
  start();
  const auto led = std::make_shared<std::latch>(1);
  loop.post_task([led] { led->count_down(); });
  led->wait();
  const NoMoreThreads limit;
  ASSERT_THROW(std::thread([] {}).detach(), std::system_error);
  const auto over = std::make_shared<std::latch>(20);

  for (int i = 0; i < 20; ++i) loop.post_long_task([over] { over->count_down(); });

  over->wait();
}

// Of a thread, in nanoseconds.
int64_t cpu_time(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Without a pulse, which would notice that the tasks block.
TEST_F(IoLoopTest, WhileAllSlotsAreInUseTheLeaderSleeps) {
  start_crew();
  clockid_t leader{};
  const auto led = std::make_shared<std::latch>(1);
  loop.post_task([&leader, led] {
    pthread_getcpuclockid(pthread_self(), &leader);
    led->count_down();
  });
  led->wait();
  const auto begun = std::make_shared<std::latch>(kSlots);
  const auto go = std::make_shared<std::latch>(1);
  for (size_t i = 0; i < kSlots; ++i) {
    loop.post_long_task([begun, go] {
      begun->count_down();
      go->wait();
    });
  }
  begun->wait();
  loop.post_long_task([] {});
  const int64_t before = cpu_time(leader);

  std::this_thread::sleep_for(200ms);
  EXPECT_LT(cpu_time(leader) - before, 50'000'000);
  go->count_down();
}

TEST_F(IoLoopTest, LongTasksThatAreLeftRunBeforeContinuationsThatMayWaitForThem) {
  start();
  stop_crew();
  const auto over = std::make_shared<std::latch>(1);
  loop.post_task([over] { over->wait(); });
  loop.post_long_task([over] { over->count_down(); });

  loop.finish();
  EXPECT_EQ(loop.unfinished(), 0u);
}

TEST_F(IoLoopTest, AfterItsEndLongTasksRunAtOnce) {
  int ran = 0;
  start();
  stop();

  loop.post_long_task([&] { ++ran; });
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace weft::rpc

// SPDX-License-Identifier: BSD-3-Clause
#include "base/pulse.h"

#include <latch>
#include <semaphore>

#include <gtest/gtest.h>

namespace weft::base {
namespace {

using namespace std::chrono_literals;

TEST(Pulse, TicksEveryListener) {
  std::latch first(5), second(5);
  Pulse pulse;
  auto count = [](std::latch& latch) {
    return [&latch] {
      if (!latch.try_wait()) latch.count_down();
    };
  };
  pulse.add(count(first));
  pulse.add(count(second));

  pulse.start();

  first.wait();
  second.wait();
}

TEST(Pulse, ATouchWakesItUpAgain) {
  std::counting_semaphore<> ticked(0);
  Pulse pulse;
  pulse.add([&ticked] { ticked.release(); });
  pulse.start();
  while (ticked.try_acquire_for(200ms)) {  // until it sleeps
  }

  pulse.touch();

  EXPECT_TRUE(ticked.try_acquire_for(10s));
}

TEST(Pulse, ABriefTouchWakesItForAFewTicks) {
  std::counting_semaphore<> ticked(0);
  Pulse pulse;
  pulse.add([&ticked] { ticked.release(); });
  pulse.start();
  while (ticked.try_acquire_for(200ms)) {  // until it sleeps
  }

  pulse.touch_briefly();

  int ticks = 0;
  while (ticked.try_acquire_for(ticks < 2 ? 10s : 200ms)) ++ticks;
  EXPECT_GE(ticks, 2);
  EXPECT_LT(ticks, 10);
}

TEST(Pulse, StopsWhileItSleepsAndWhileItTicks) {
  for (int i = 0; i < 3; ++i) {
    Pulse awake;
    awake.start();
    awake.touch();
    awake.stop();
    awake.stop();
  }
  std::counting_semaphore<> ticked(0);
  Pulse asleep;
  asleep.add([&ticked] { ticked.release(); });
  asleep.start();
  while (ticked.try_acquire_for(200ms)) {
  }

  asleep.stop();
}

TEST(Pulse, NeedNotBeStarted) {
  Pulse pulse;

  pulse.touch();
  pulse.stop();
}

}  // namespace
}  // namespace weft::base

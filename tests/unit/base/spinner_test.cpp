// SPDX-License-Identifier: BSD-3-Clause
#include "base/spinner.h"

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/scenario.h"

namespace weft::base {
namespace {

using namespace std::chrono_literals;

// Polls that are allowed in a row, until `most`.
int polls(Spinner& spinner, int most, bool crowded = false) {
  int count = 0;
  while (count < most && spinner.again(crowded)) ++count;
  return count;
}

// On one that has not come back late from anything.
void on_a_new_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(Spinner, DoesNothingWithoutABudget) {
  Spinner spinner;
  spinner.begin(0ns);

  EXPECT_FALSE(spinner.again());
  EXPECT_FALSE(spinner.again(/*crowded=*/true));
}

TEST(Spinner, GoesOnWithinItsBudgetAlsoInACrowd) {
  for (const bool crowded : {false, true}) {
    on_a_new_thread([crowded] {
      Spinner spinner;
      spinner.begin(1h);

      EXPECT_EQ(polls(spinner, 1000, crowded), 1000);
    });
  }
}

TEST(Spinner, EndsWithItsBudget) {
  for (const bool crowded : {false, true}) {
    on_a_new_thread([crowded] {
      Spinner spinner;
      const Time start = std::chrono::steady_clock::now();
      spinner.begin(1ms);

      while (spinner.again(crowded)) {
      }

      EXPECT_GE(std::chrono::steady_clock::now() - start, 1ms);
    });
  }
}

TEST(Spinner, EndsAtItsLimitHoweverLargeTheBudget) {
  for (const Duration budget : {Duration(1h), Duration::max()}) {
    on_a_new_thread([budget] {
      Spinner spinner;
      const Time limit = std::chrono::steady_clock::now() + 1ms;
      spinner.begin(budget, limit);

      while (spinner.again()) {
      }

      EXPECT_GE(std::chrono::steady_clock::now(), limit);
    });
  }
}

TEST(Spinner, NewBudgetAfterAnOldOneWasUsedUp) {
  bool polled = false;
  for (int i = 0; i < 1000 && !polled; ++i) {  // the machine may be busy with something else
    on_a_new_thread([&polled] {
      Spinner spinner;
      spinner.begin(1ms);
      while (spinner.again()) {
      }
      spinner.begin(1h);
      polled = polls(spinner, 1000) == 1000;
    });
  }
  EXPECT_TRUE(polled);
}

TEST(Spinner, IsNotLateBecauseItsLimitHadPassedBefore) {
  bool polled = false;
  for (int i = 0; i < 1000 && !polled; ++i) {  // the machine may be busy with something else
    on_a_new_thread([&polled] {
      Spinner spinner;
      spinner.begin(1h, std::chrono::steady_clock::now() - 1h);
      EXPECT_FALSE(spinner.again(/*crowded=*/true));
      spinner.begin(1h);
      polled = polls(spinner, 1000) == 1000;
    });
  }
  EXPECT_TRUE(polled);
}

TEST(Spinner, DoesNotPollForAWhileWhenOthersWantItsCpu) {
  on_a_new_thread([] {
    cpu_set_t mine;
    ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &mine)) ++cpu;
    CPU_ZERO(&mine);
    CPU_SET(cpu, &mine);
    ASSERT_EQ(sched_setaffinity(0, sizeof mine, &mine), 0);
    std::atomic<bool> over{false};
    std::vector<std::thread> others;  // on the same CPU, as this thread is
    for (int i = 0; i < 4; ++i) {
      others.emplace_back([&over] {
        while (!over) {
        }
      });
    }
    Spinner spinner;
    const auto ends_before_it_polls = [&spinner] {
      spinner.begin(20us);
      const bool ends = !spinner.again();
      while (spinner.again(/*crowded=*/true)) {
      }
      return ends;
    };

    EXPECT_TRUE(test::eventually(ends_before_it_polls));
    over = true;
    for (std::thread& other : others) other.join();
    EXPECT_TRUE(test::eventually([&] { return !ends_before_it_polls(); }));
  });
}

}  // namespace
}  // namespace weft::base

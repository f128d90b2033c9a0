// SPDX-License-Identifier: BSD-3-Clause
#include "base/spinner.h"

#include <gtest/gtest.h>

namespace weft::base {
namespace {

using namespace std::chrono_literals;

// Polls that are allowed in a row, until `most`.
int polls(Spinner& spinner, int most, bool crowded = false) {
  int count = 0;
  while (count < most && spinner.again(crowded)) ++count;
  return count;
}

TEST(Spinner, DoesNothingWithoutABudget) {
  Spinner spinner;
  spinner.begin(0ns);

  EXPECT_FALSE(spinner.again());
  EXPECT_FALSE(spinner.again(/*crowded=*/true));
}

TEST(Spinner, GoesOnWithinItsBudgetAlsoInACrowd) {
  Spinner spinner;
  for (const bool crowded : {false, true}) {
    spinner.begin(1h);

    EXPECT_EQ(polls(spinner, 1000, crowded), 1000);
  }
}

TEST(Spinner, EndsWithItsBudget) {
  Spinner spinner;
  for (const bool crowded : {false, true}) {
    const Time start = std::chrono::steady_clock::now();
    spinner.begin(1ms);

    while (spinner.again(crowded)) {
    }

    EXPECT_GE(std::chrono::steady_clock::now() - start, 1ms);
  }
}

TEST(Spinner, EndsAtItsLimitHoweverLargeTheBudget) {
  Spinner spinner;
  for (const Duration budget : {Duration(1h), Duration::max()}) {
    const Time limit = std::chrono::steady_clock::now() + 1ms;
    spinner.begin(budget, limit);

    while (spinner.again()) {
    }

    EXPECT_GE(std::chrono::steady_clock::now(), limit);
  }
}

TEST(Spinner, NewBudgetAfterAnOldOneWasUsedUp) {
  Spinner spinner;
  spinner.begin(1ms);
  while (spinner.again()) {
  }

  spinner.begin(1h);

  EXPECT_EQ(polls(spinner, 1000), 1000);
}

}  // namespace
}  // namespace weft::base

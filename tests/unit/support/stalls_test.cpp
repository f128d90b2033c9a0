// SPDX-License-Identifier: BSD-3-Clause
#include "support/stalls.h"

#include <gtest/gtest.h>

namespace weft::test {
namespace {

using namespace std::chrono_literals;

std::chrono::steady_clock::time_point at(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::time_point(time);
}

TEST(Stalls, OfSeveralCpusAtATimeCountOnce) {
  EXPECT_EQ(time_covered({{at(30ms), at(60ms)}, {at(10ms), at(40ms)}}, at(0ms), at(100ms)), 50ms);
  EXPECT_EQ(time_covered({{at(10ms), at(60ms)}, {at(20ms), at(30ms)}}, at(0ms), at(100ms)), 50ms);
}

TEST(Stalls, CountAsFarAsTheyAreInTheTimeAskedFor) {
  EXPECT_EQ(time_covered({{at(0ms), at(30ms)}, {at(90ms), at(200ms)}}, at(20ms), at(100ms)), 20ms);
  EXPECT_EQ(time_covered({{at(0ms), at(10ms)}, {at(110ms), at(200ms)}}, at(20ms), at(100ms)), 0ms);
}

TEST(Stalls, OfUnderFiveMillisecondsDoNotCount) {
  EXPECT_EQ(time_covered({{at(10ms), at(14ms)}, {at(12ms), at(16ms)}}, at(0ms), at(100ms)), 0ms);
}

}  // namespace
}  // namespace weft::test

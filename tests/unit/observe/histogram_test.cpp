// SPDX-License-Identifier: BSD-3-Clause
#include "observe/histogram.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace weft::observe {
namespace {

TEST(Histogram, IsZeroWithoutSamples) {
  const Histogram histogram;

  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.sum(), 0u);
  EXPECT_EQ(histogram.quantile(0.5), 0u);
}

TEST(Histogram, AQuantileIsAnUpperBoundAtMostAQuarterTooHigh) {
  for (int64_t value = 1; value < (int64_t{1} << 42); value += 1 + value / 13) {
    Histogram histogram;
    histogram.record(value);

    for (const double p : {0.0, 0.5, 1.0}) {
      ASSERT_GE(histogram.quantile(p), static_cast<uint64_t>(value));
      ASSERT_LE(static_cast<double>(histogram.quantile(p)), 1.25 * static_cast<double>(value))
          << value;
    }
  }
}

TEST(Histogram, QuantilesOfManySamplesAreAsGood) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> latency(std::log(20'000), 1.5);
  Histogram histogram;
  std::vector<int64_t> samples(100'000);

  for (int64_t& sample : samples)
    histogram.record(sample = 1 + static_cast<int64_t>(latency(random)));
  std::sort(samples.begin(), samples.end());

  EXPECT_EQ(histogram.count(), samples.size());
  for (const double p : {0.01, 0.5, 0.9, 0.99, 0.999}) {
    const auto exact = static_cast<double>(samples[static_cast<size_t>(p * 99'999)]);
    EXPECT_GE(static_cast<double>(histogram.quantile(p)), exact) << p;
    EXPECT_LE(static_cast<double>(histogram.quantile(p)), 1.25 * exact) << p;
  }
}

TEST(Histogram, SumsUp) {
  Histogram histogram;

  for (int i = 1; i <= 100; ++i) histogram.record(i);

  EXPECT_EQ(histogram.sum(), 5050u);
  EXPECT_EQ(histogram.count(), 100u);
}

TEST(Histogram, TakesWhatCannotBe) {
  Histogram histogram;

  histogram.record(-5);
  histogram.record(0);
  histogram.record(INT64_MAX);

  EXPECT_EQ(histogram.count(), 3u);
  EXPECT_EQ(histogram.quantile(0), 0u);
  EXPECT_GT(histogram.quantile(1), uint64_t{1} << 41);
}

}  // namespace
}  // namespace weft::observe

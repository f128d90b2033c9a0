// SPDX-License-Identifier: BSD-3-Clause
#include "nn/bucket_plan.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::nn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<Bucketed> floats(const std::vector<size_t>& bytes) {
  std::vector<Bucketed> all;
  for (const size_t each : bytes) all.push_back({each, "float", false});
  return all;
}
std::vector<size_t> backwards(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

TEST(BucketPlan, PutsThingsTogetherInTheirOrder) {
  EXPECT_THAT(plan_buckets(floats({4, 4, 4}), {2, 0, 1}, {1000, 1000}),
              ElementsAre(ElementsAre(2, 0, 1)));
}

TEST(BucketPlan, TheFirstBucketHasALimitOfItsOwn) {
  const auto plan = plan_buckets(floats(std::vector<size_t>(8, 8)), backwards(8), {8, 24});

  EXPECT_THAT(plan, ElementsAre(ElementsAre(7), ElementsAre(6, 5, 4), ElementsAre(3, 2, 1),
                                ElementsAre(0)));
}

TEST(BucketPlan, OneThatIsLargerThanTheLimitIsInABucketAllTheSame) {
  const auto plan = plan_buckets(floats({1000, 2000, 3000}), {0, 1, 2}, {10, 10});

  EXPECT_THAT(plan, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(BucketPlan, LimitsOfZeroSeparateAll) {
  EXPECT_THAT(plan_buckets(floats({4, 4}), {1, 0}, {0, 0}),
              ElementsAre(ElementsAre(1), ElementsAre(0)));
}

TEST(BucketPlan, ABucketHasOneType) {
  auto parameters = floats({4, 4, 4, 4});
  parameters[1].type = parameters[3].type = "double";

  const auto plan = plan_buckets(parameters, {0, 1, 2, 3}, {1000, 1000});

  EXPECT_EQ(plan.size(), 2u);
  for (const auto& bucket : plan) {
    for (const size_t each : bucket) {
      EXPECT_EQ(parameters[each].type, parameters[bucket[0]].type);
    }
  }
}

TEST(BucketPlan, ASparseOneIsAlone) {
  auto parameters = floats({4, 4, 4});
  parameters[1].sparse = true;

  const auto plan = plan_buckets(parameters, {0, 1, 2}, {1000, 1000});

  EXPECT_THAT(plan, testing::Contains(ElementsAre(1)));
  EXPECT_THAT(plan, testing::Contains(ElementsAre(0, 2)));
  EXPECT_EQ(plan.size(), 2u);
}

TEST(BucketPlan, NothingGivesNoBuckets) { EXPECT_THAT(plan_buckets({}, {}, {10, 10}), IsEmpty()); }

/// Anything that plan_buckets may be given.
struct RandomCase {
  explicit RandomCase(uint32_t seed) : random(seed) {
    const size_t count = random() % 40;
    for (size_t i = 0; i < count; ++i) {
      parameters.push_back(
          {random() % 100, std::string(1, static_cast<char>('a' + random() % 3)), one_in(6)});
    }
    order = backwards(count);
    std::shuffle(order.begin(), order.end(), random);
    limits = {random() % 100, random() % 300};
  }
  bool one_in(uint32_t n) { return random() % n == 0; }

  std::mt19937 random;
  std::vector<Bucketed> parameters;
  std::vector<size_t> order;
  BucketLimits limits;
};

TEST(BucketPlan, EveryPlanIsAsItShouldBe) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const RandomCase some(seed);
    const auto place = [&](size_t parameter) {
      return std::find(some.order.begin(), some.order.end(), parameter);
    };

    const BucketPlan plan = plan_buckets(some.parameters, some.order, some.limits);

    std::set<size_t> seen;
    for (const auto& bucket : plan) {
      ASSERT_FALSE(bucket.empty()) << seed;
      size_t bytes_before_last = 0;
      for (size_t i = 0; i < bucket.size(); ++i) {
        const Bucketed& each = some.parameters.at(bucket[i]);
        EXPECT_TRUE(seen.insert(bucket[i]).second) << seed;
        EXPECT_EQ(each.type, some.parameters[bucket[0]].type) << seed;
        EXPECT_TRUE(!each.sparse || bucket.size() == 1) << seed;
        EXPECT_TRUE(i == 0 || place(bucket[i - 1]) < place(bucket[i])) << seed;
        if (i + 1 < bucket.size()) bytes_before_last += each.bytes;
      }
      const size_t limit = std::max(some.limits.first_bytes, some.limits.bytes);
      EXPECT_LE(bytes_before_last, limit) << seed;
    }
    EXPECT_EQ(seen.size(), some.parameters.size()) << seed;
  }
}

TEST(BucketPlan, OfTheSameThingsIsTheSame) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const RandomCase one(seed), other(seed);

    EXPECT_EQ(plan_buckets(one.parameters, one.order, one.limits),
              plan_buckets(other.parameters, other.order, other.limits));
  }
}

// --- progress ----------------------------------------------------------------------------------

TEST(BucketProgress, ABucketIsReducedWhenItIsComplete) {
  BucketProgress progress({{2, 1}, {0}}, 3);

  EXPECT_THAT(progress.on_ready(2), IsEmpty());
  EXPECT_TRUE(progress.is_ready(2));
  EXPECT_FALSE(progress.is_ready(1));
  EXPECT_THAT(progress.on_ready(1), ElementsAre(0));
  EXPECT_EQ(progress.begun(), 1u);
  EXPECT_THAT(progress.on_ready(0), ElementsAre(1));
  EXPECT_THAT(progress.missing(), IsEmpty());
  EXPECT_THAT(progress.on_all(), IsEmpty());
}

TEST(BucketProgress, ABucketThatIsCompleteTooSoonWaitsForThoseBefore) {
  BucketProgress progress({{3}, {2}, {0, 1}}, 4);

  EXPECT_THAT(progress.on_ready(2), IsEmpty());
  EXPECT_THAT(progress.on_ready(0), IsEmpty());
  EXPECT_THAT(progress.on_ready(1), IsEmpty());
  EXPECT_EQ(progress.begun(), 0u);
  EXPECT_THAT(progress.on_ready(3), ElementsAre(0, 1, 2));
  EXPECT_EQ(progress.begun(), 3u);
}

TEST(BucketProgress, AtTheEndAllThatAreLeftAreReduced) {
  BucketProgress progress({{3}, {2}, {0, 1}}, 4);
  progress.on_ready(3);
  progress.on_ready(1);

  EXPECT_THAT(progress.missing(), ElementsAre(0, 2));
  EXPECT_THAT(progress.on_all(), ElementsAre(1, 2));
  EXPECT_EQ(progress.begun(), 3u);
  EXPECT_THAT(progress.on_all(), IsEmpty());
}

// Members must reduce the same buckets in the same order, however their gradients come.
TEST(BucketProgress, TheOrderOfReductionsIsThatOfThePlanWhateverComesWhen) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    RandomCase some(seed);
    const BucketPlan plan = plan_buckets(some.parameters, some.order, some.limits);
    std::vector<size_t> expected(plan.size());
    std::iota(expected.begin(), expected.end(), size_t{0});
    std::shuffle(some.order.begin(), some.order.end(), some.random);
    BucketProgress progress(plan, some.parameters.size());

    std::vector<size_t> reduced;
    const auto reduce = [&](const std::vector<size_t>& buckets) {
      for (const size_t each : buckets) {
        reduced.push_back(each);
        for (const size_t parameter : plan[each]) {
          EXPECT_TRUE(progress.is_ready(parameter)) << seed << ": bucket is not complete";
        }
      }
    };
    for (const size_t each : some.order) reduce(progress.on_ready(each));
    reduce(progress.on_all());

    EXPECT_EQ(reduced, expected) << seed;
  }
}

}  // namespace
}  // namespace weft::nn

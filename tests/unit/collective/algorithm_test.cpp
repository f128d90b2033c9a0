// The algorithms, with all members played by the test: chunks are handed over as they are sent.
// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/algorithm.h"

#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/error.h"

namespace weft::collective {
namespace {

using testing::Property;
using testing::Throws;

constexpr size_t kMost = 5;

// Above this many elements of four bytes, all_reduce of more than two goes by shares.
constexpr int64_t kMany = 16 * 1024;
constexpr int64_t kManyOfTwo = 256 * 1024;

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& each : tensors) copies.push_back(each.clone());
  return copies;
}

using Make = std::function<std::unique_ptr<Algorithm>(Place)>;

// All members of one operation.
class Members {
 public:
  Members(size_t size, const Make& make) : phases_(size, 0), mail_(size) {
    for (size_t i = 0; i < size; ++i) courses_.push_back(make({i, size}));
    for (size_t i = 0; i < size; ++i) post(i, courses_[i]->begin());
  }

  /// Takes members further, the last first, until none can go on.
  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = courses_.size(); i-- > 0;) moved = step(i) || moved;
    }
    for (size_t i = 0; i < courses_.size(); ++i) EXPECT_EQ(phases_[i], courses_[i]->phases());
  }
  Algorithm& operator[](size_t place) { return *courses_[place]; }
  /// What an all_reduce of `given` gave: apart, or in place.
  Tensors reduced(size_t place, const Tensors& given) {
    const std::vector<Tensors> apart = courses_[place]->take_result();
    return apart.empty() ? given : apart.at(0);
  }

 private:
  void post(size_t from, Algorithm::Sendings sendings) {
    for (Algorithm::Sending& each : sendings) {
      EXPECT_NE(each.to, from);
      EXPECT_LT(each.phase, courses_[from]->phases());
      EXPECT_TRUE(courses_[each.to]->expects(each.phase, from));
      // Such a chunk is used as soon as it comes, whatever its receiver waits for.
      if (courses_[each.to]->uses_at_once(each.phase)) {
        courses_[each.to]->use(each.phase, from, each.tensors);
        each.tensors.clear();
      }
      const bool is_first =
          mail_[each.to].emplace(std::pair(each.phase, from), std::move(each.tensors)).second;
      EXPECT_TRUE(is_first);
    }
  }

  bool step(size_t place) {
    const uint8_t phase = phases_[place];
    if (phase == courses_[place]->phases()) return false;
    std::vector<Tensors> chunks(courses_.size());
    for (size_t from = 0; from < courses_.size(); ++from) {
      if (!courses_[place]->expects(phase, from)) continue;
      const auto found = mail_[place].find(std::pair(phase, from));
      if (found == mail_[place].end()) return false;
      // The sender may not have changed them yet.
      chunks[from] = copies_of(found->second);
    }
    ++phases_[place];
    post(place, courses_[place]->go_on(phase, std::move(chunks)));
    return true;
  }

  std::vector<std::unique_ptr<Algorithm>> courses_;
  std::vector<uint8_t> phases_;
  std::vector<std::map<std::pair<uint8_t, size_t>, Tensors>> mail_;
};

// Small integers: their sums are exact in every type, in every order.
Tensors random_tensors(const std::vector<int64_t>& sizes, at::ScalarType type) {
  Tensors tensors;
  for (const int64_t size : sizes) tensors.push_back(at::randint(-9, 10, {size}).to(type));
  return tensors;
}

const std::vector<std::vector<int64_t>> kSizes{{0},
                                               {1},
                                               {3, 0, 4},
                                               {0, 0},
                                               {},
                                               {1000},
                                               {kMany},
                                               {kMany + 1},
                                               {kManyOfTwo + 1},
                                               {1, kMany, 0, 7},
                                               // Five shares, each of which has pieces of several.
                                               {5000, 3, 11'000, 1, 9000}};

constexpr AllReduceWay kWays[] = {AllReduceWay::kAutomatic, AllReduceWay::kDirect,
                                  AllReduceWay::kDoubling, AllReduceWay::kShares};

struct AllReduceCase {
  size_t size;
  std::vector<int64_t> sizes;
  AllReduceWay way;
};

std::vector<AllReduceCase> all_reduce_cases() {
  std::vector<AllReduceCase> cases;
  for (const AllReduceWay way : kWays) {
    for (size_t size = 1; size <= kMost; ++size) {
      for (const auto& sizes : kSizes) cases.push_back({size, sizes, way});
    }
    for (const size_t size : {6, 7, 8, 9, 13, 17}) cases.push_back({size, {1, 0, 99}, way});
  }
  // Several segments, which begin and end within tensors.
  cases.push_back({2, {1'000'000, 1, 177'000}, AllReduceWay::kShares});
  cases.push_back({3, {1, 777'777, 888'888, 7}, AllReduceWay::kShares});
  return cases;
}

void expect_sums(const AllReduceCase& each, at::ScalarType type) {
  const auto& [size, sizes, way] = each;
  std::vector<Tensors> values;
  for (size_t i = 0; i < size; ++i) values.push_back(random_tensors(sizes, type));
  Tensors sums;
  for (size_t k = 0; k < sizes.size(); ++k) {
    sums.push_back(at::zeros({sizes[k]}, type));
    for (const Tensors& of_one : values) sums[k] += of_one[k];
  }

  Members members(size, [&, way = way](Place place) {
    return all_reduce_algorithm(place, values[place.own], folding_of(ReduceOp::kSum, place.size),
                                way);
  });
  members.run();

  for (size_t i = 0; i < size; ++i) {
    const Tensors got = members.reduced(i, values[i]);
    ASSERT_EQ(got.size(), sums.size());
    for (size_t k = 0; k < sizes.size(); ++k) {
      EXPECT_TRUE(at::equal(got[k], sums[k])) << size << " members, way " << static_cast<int>(way);
    }
  }
}

TEST(Algorithm, AllReduceGivesTheSumToAll) {
  for (const AllReduceCase& each : all_reduce_cases()) {
    for (const at::ScalarType type : {at::kFloat, at::kLong, at::kBFloat16})
      expect_sums(each, type);
  }
}

// Gives memory for every second share, as an arena that is full at times.
SharedMemory every_second_time() {
  return [calls = std::make_shared<int>(0)](const Tensors& like) {
    Tensors tensors;
    if (++*calls % 2 == 0) return tensors;
    for (const at::Tensor& each : like) tensors.push_back(at::empty_like(each));
    return tensors;
  };
}

TEST(Algorithm, AllReduceThroughSharedMemoryGivesTheSameBits) {
  for (const at::ScalarType type : {at::kFloat, at::kLong, at::kBFloat16}) {
    for (const size_t size : {1, 2, 3, 5}) {
      std::vector<Tensors> values, others;
      for (size_t i = 0; i < size; ++i) {
        values.push_back({at::randn({3'000'000}).to(type), at::randn({5}).to(type)});
        others.push_back(copies_of(values[i]));
      }
      const Folding folding = folding_of(ReduceOp::kSum, size);
      Members members(size, [&](Place place) {
        return all_reduce_algorithm(place, values[place.own], folding, AllReduceWay::kShares);
      });
      Members neighbours(size, [&](Place place) {
        return all_reduce_algorithm(place, others[place.own], folding, AllReduceWay::kShares,
                                    every_second_time());
      });
      members.run();
      neighbours.run();

      for (size_t i = 0; i < size; ++i) {
        for (size_t k = 0; k < 2; ++k) EXPECT_TRUE(at::equal(values[i][k], others[i][k]));
      }
    }
  }
}

TEST(Algorithm, WhatIsInSharedMemoryLasts) {
  SharedMemory memory = every_second_time();
  const auto course =
      all_reduce_algorithm({0, 2}, {at::ones({kManyOfTwo + 2})}, {}, AllReduceWay::kShares, memory);
  for (const auto& each : course->begin()) EXPECT_FALSE(each.lasting);  // the caller's own tensors
  const auto sendings = course->go_on(0, {{}, {at::ones({kManyOfTwo / 2 + 1})}});
  ASSERT_EQ(sendings.size(), 1u);
  EXPECT_TRUE(sendings[0].lasting);
}

std::vector<at::Tensor> all_reduced(std::vector<at::Tensor> values, AllReduceWay way, ReduceOp op) {
  Members members(values.size(), [&](Place place) {
    return all_reduce_algorithm(place, {values[place.own]}, folding_of(op, place.size), way);
  });
  members.run();
  for (size_t i = 0; i < values.size(); ++i) values[i] = members.reduced(i, {values[i]})[0];
  return values;
}

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

// Numbers, and what is neither equal to itself nor different from what it equals.
at::Tensor with_nan_and_zeros(int64_t elements, at::ScalarType type, size_t member) {
  at::Tensor values = at::randn({elements});
  const auto first = static_cast<int64_t>(member);
  values.slice(0, first, elements, 11).fill_(std::numeric_limits<float>::quiet_NaN());
  values.slice(0, 7, elements, 11).fill_(member % 2 == 0 ? 0.0f : -0.0f);
  return values.to(type);
}

TEST(Algorithm, AverageIsThatOfAll) {
  for (const AllReduceWay way : kWays) {
    for (const size_t size : {2, 3, 5, 8}) {
      std::vector<at::Tensor> values;
      for (size_t i = 0; i < size; ++i) values.push_back(at::randn({3 * kMany + 1}));
      const at::Tensor expected = at::stack(values).to(at::kDouble).mean(0);
      for (const at::Tensor& got : all_reduced(values, way, ReduceOp::kAverage))
        EXPECT_TRUE(got.to(at::kDouble).allclose(expected, 0, 1e-5));
    }
  }
}

void expect_same_bits(size_t size, int64_t elements, at::ScalarType type, AllReduceWay way) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < size; ++i) values.push_back(with_nan_and_zeros(elements, type, i));
    const std::vector<at::Tensor> got = all_reduced(values, way, op);
    for (const at::Tensor& each : got) {
      EXPECT_TRUE(bytes_of(each) == bytes_of(got[0]))
          << size << " members, " << elements << " of " << type << ", way " << static_cast<int>(way)
          << ", reduction " << static_cast<int>(op);
    }
  }
}

TEST(Algorithm, AllReduceGivesTheSameBitsToAll) {
  for (const AllReduceWay way : kWays) {
    for (const size_t size : {2, 3, 4, 5, 7, 8, 11}) {
      for (const int64_t elements : {int64_t{777}, 3 * kMany + 1}) {
        for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16})
          expect_same_bits(size, elements, type, way);
      }
    }
  }
}

TEST(Algorithm, BroadcastGivesTheRootsTensorsToAll) {
  for (size_t size = 1; size <= kMost; ++size) {
    for (size_t root = 0; root < size; ++root) {
      for (const auto& sizes : kSizes) {
        std::vector<Tensors> values;
        for (size_t i = 0; i < size; ++i) values.push_back(random_tensors(sizes, at::kInt));
        const Tensors wanted = copies_of(values[root]);

        Members members(
            size, [&](Place place) { return broadcast_algorithm(place, values[place.own], root); });
        members.run();

        for (const Tensors& each : values) {
          for (size_t k = 0; k < sizes.size(); ++k) EXPECT_TRUE(at::equal(each[k], wanted[k]));
        }
      }
    }
  }
}

TEST(Algorithm, AllGatherGivesAnythingToAll) {
  for (size_t size = 1; size <= kMost; ++size) {
    std::vector<Tensors> values;
    for (size_t i = 0; i < size; ++i) {
      const auto rows = static_cast<int64_t>(i);
      values.push_back({at::randn({rows, 3}), at::randn({2, rows + 1}).to(at::kDouble)});
    }

    Members members(size,
                    [&](Place place) { return all_gather_algorithm(place, values[place.own]); });
    members.run();

    for (size_t i = 0; i < size; ++i) {
      const std::vector<Tensors> result = members[i].take_result();
      ASSERT_EQ(result.size(), size);
      for (size_t from = 0; from < size; ++from) {
        ASSERT_EQ(result[from].size(), 2u);
        for (size_t k = 0; k < 2; ++k) EXPECT_TRUE(at::equal(result[from][k], values[from][k]));
      }
      EXPECT_NE(result[i][1].data_ptr(), values[i][1].data_ptr()) << "the result is a copy";
    }
  }
}

TEST(Algorithm, ReduceScatterGivesEverybodyItsOwn) {
  for (size_t size = 1; size <= kMost; ++size) {
    std::vector<int64_t> sizes{1000, 0, 3, 40'000, 1};
    sizes.resize(size);
    std::vector<Tensors> values, before;
    for (size_t i = 0; i < size; ++i) {
      values.push_back(random_tensors(sizes, at::kDouble));
      before.push_back(copies_of(values.back()));
    }

    Members members(size, [&](Place place) {
      return reduce_scatter_algorithm(place, values[place.own], folding_of(ReduceOp::kSum, size));
    });
    members.run();

    for (size_t i = 0; i < size; ++i) {
      at::Tensor sum = at::zeros({sizes[i]}, at::kDouble);
      for (const Tensors& each : before) sum += each[i];
      const std::vector<Tensors> result = members[i].take_result();
      ASSERT_EQ(result.size(), 1u);
      EXPECT_TRUE(at::equal(result[0].at(0), sum));
      for (size_t k = 0; k < size; ++k) EXPECT_TRUE(at::equal(values[i][k], before[i][k]));
    }
  }
}

TEST(Algorithm, BarrierHearsOfEverybody) {
  for (size_t size = 1; size <= kMost; ++size) {
    Members members(size, [](Place place) { return barrier_algorithm(place); });
    members.run();
    for (size_t i = 0; i < size; ++i) {
      for (size_t from = 0; from < size; ++from) {
        EXPECT_EQ(members[i].expects(0, from), from != i);
      }
    }
  }
}

// What a member that lies about its signature, or another build, might send.
class CourseWithWrongParts : public testing::Test {
 protected:
  static void expect_refused(const std::function<std::unique_ptr<Algorithm>()>& make, uint8_t phase,
                             const std::vector<Tensors>& chunks) {
    const std::unique_ptr<Algorithm> algorithm = make();
    algorithm->begin();
    for (uint8_t i = 0; i < phase; ++i) take(*algorithm, i, good_);
    EXPECT_THAT([&] { take(*algorithm, phase, chunks); },
                Throws<Error>(Property(&Error::code, ErrorCode::kBadMessage)));
  }
  static void take(Algorithm& algorithm, uint8_t phase, std::vector<Tensors> chunks) {
    if (algorithm.uses_at_once(phase)) {
      algorithm.use(phase, 1, chunks[1]);
      chunks[1].clear();
    }
    algorithm.go_on(phase, std::move(chunks));
  }
  static inline std::vector<Tensors> good_;
};

TEST_F(CourseWithWrongParts, OfReductions) {
  const auto few = [] { return all_reduce_algorithm({0, 2}, {at::ones({3})}, {}); };
  const auto many = [] { return all_reduce_algorithm({0, 2}, {at::ones({kManyOfTwo + 2})}, {}); };
  good_ = {{}, {at::ones({kManyOfTwo / 2 + 1})}};
  for (const Tensors& wrong :
       {Tensors{}, Tensors{at::ones({2})}, Tensors{at::Tensor()},
        Tensors{at::ones({3}), at::ones({3})}, Tensors{at::ones({3}, at::kLong)},
        Tensors{at::ones({3, 1})}, Tensors{at::ones({3}).to_sparse()},
        // Of the right length, but not one element after the other.
        Tensors{at::ones({6}).slice(0, 0, 6, 2)}, Tensors{at::ones({1}).expand({3})}}) {
    expect_refused(few, 0, {{}, wrong});
    expect_refused(many, 0, {{}, wrong});
    expect_refused(many, 1, {{}, wrong});
    expect_refused(
        [] {
          return reduce_scatter_algorithm({0, 2}, {at::ones({3}), at::ones({1})}, {});
        },
        0, {{}, wrong});
    expect_refused([] { return broadcast_algorithm({0, 2}, {at::ones({3})}, 1); }, 0, {{}, wrong});
  }
}

TEST_F(CourseWithWrongParts, OfGathers) {
  const auto gather = [] { return all_gather_algorithm({0, 2}, {at::ones({3})}); };
  expect_refused(gather, 0, {{}, {}});
  expect_refused(gather, 0, {{}, {at::ones({1}), at::ones({1})}});
  expect_refused(gather, 0, {{}, {at::Tensor()}});
  expect_refused([] { return barrier_algorithm({0, 2}); }, 0, {{}, {at::ones({1})}});
}

}  // namespace
}  // namespace weft::collective

// SPDX-License-Identifier: BSD-3-Clause
#include "arena/extents.h"

#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::arena {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr size_t kUnit = Extents::kUnit;
constexpr size_t kChunk = Extents::kChunk;

TEST(Extents, SizesAreRoundedUpAndExtentsDoNotOverlap) {
  Extents extents(kChunk);
  EXPECT_EQ(extents.allocate(1), (Extent{0, kUnit}));
  EXPECT_EQ(extents.allocate(kUnit), (Extent{kUnit, kUnit}));
  EXPECT_EQ(extents.allocate(kUnit + 1), (Extent{2 * kUnit, 2 * kUnit}));
  EXPECT_EQ(extents.used(), 4 * kUnit);
}

TEST(Extents, WhatDoesNotFitIsRefused) {
  Extents extents(kChunk);
  EXPECT_FALSE(extents.allocate(kChunk + 1));
  EXPECT_FALSE(extents.allocate(SIZE_MAX));
  EXPECT_FALSE(extents.allocate(SIZE_MAX - kUnit));
  EXPECT_TRUE(extents.allocate(kChunk));
  EXPECT_FALSE(extents.allocate(1));
}

TEST(Extents, WhatWasFreedIsUsedAgainFirst) {
  Extents extents(4 * kChunk);
  const Extent first = *extents.allocate(10 * kUnit);
  extents.allocate(kUnit);
  extents.free(first.start);
  EXPECT_EQ(extents.allocate(9 * kUnit), (Extent{first.start, 9 * kUnit}));
  EXPECT_EQ(extents.allocate(kUnit), (Extent{9 * kUnit, kUnit}));
}

TEST(Extents, NeighboursThatAreFreeBecomeOne) {
  for (const auto& order : {std::array{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {2, 0, 1}}) {
    Extents extents(kChunk);
    std::array<size_t, 3> starts;
    for (size_t& start : starts) start = extents.allocate(kChunk / 4)->start;
    for (const int i : order) extents.free(starts[static_cast<size_t>(i)]);
    EXPECT_EQ(extents.allocate(kChunk), (Extent{0, kChunk}));
  }
}

TEST(Extents, AnAddressIsFoundInItsExtentOnly) {
  Extents extents(kChunk);
  extents.allocate(kUnit);
  const Extent second = *extents.allocate(2 * kUnit);
  EXPECT_EQ(extents.find(kUnit), second);
  EXPECT_EQ(extents.find(3 * kUnit - 1), second);
  EXPECT_FALSE(extents.find(3 * kUnit));
  extents.free(second.start);
  EXPECT_FALSE(extents.find(kUnit));
}

std::vector<Extent> stale_of_period(Extents& extents) {
  std::vector<Extent> stale = extents.take_stale();
  extents.end_period();
  return stale;
}

TEST(Extents, ChunksThatWereFreeForAWholePeriodAreStale) {
  Extents extents(8 * kChunk);
  const Extent large = *extents.allocate(4 * kChunk);
  extents.free(large.start);
  EXPECT_THAT(stale_of_period(extents), IsEmpty());
  EXPECT_TRUE(extents.may_go_stale());
  const Extent small = *extents.allocate(kUnit);  // in the first chunk
  EXPECT_THAT(stale_of_period(extents), ElementsAre(Extent{kChunk, 3 * kChunk}));
  EXPECT_FALSE(extents.may_go_stale());
  EXPECT_THAT(stale_of_period(extents), IsEmpty());
  extents.free(small.start);
  EXPECT_THAT(stale_of_period(extents), IsEmpty());
  EXPECT_THAT(stale_of_period(extents), ElementsAre(Extent{0, kChunk}));
  EXPECT_THAT(stale_of_period(extents), IsEmpty());
}

TEST(Extents, StaleChunksAreTakenInParts) {
  Extents extents(8 * kChunk);
  extents.free(extents.allocate(5 * kChunk)->start);
  extents.end_period();

  EXPECT_THAT(extents.take_stale(2 * kChunk), ElementsAre(Extent{0, 2 * kChunk}));
  EXPECT_TRUE(extents.may_go_stale());
  EXPECT_THAT(extents.take_stale(2 * kChunk), ElementsAre(Extent{2 * kChunk, 2 * kChunk}));
  EXPECT_THAT(extents.take_stale(2 * kChunk), ElementsAre(Extent{4 * kChunk, kChunk}));
  EXPECT_FALSE(extents.may_go_stale());
}

TEST(Extents, AChunkThatIsUsedInPartIsNotStale) {
  Extents extents(4 * kChunk);
  extents.allocate(kUnit);
  const Extent large = *extents.allocate(2 * kChunk);
  extents.allocate(kUnit);
  extents.free(large.start);
  stale_of_period(extents);
  EXPECT_THAT(extents.take_stale(), ElementsAre(Extent{kChunk, kChunk}));
}

// Against a plain model: no two extents overlap, and everything comes back.
TEST(Extents, RandomUseKeepsItsInvariants) {
  std::mt19937_64 random(7);
  Extents extents(64 * kChunk);
  std::map<size_t, size_t> model;
  size_t used = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (!model.empty() && random() % 2 == 0) {
      auto victim = model.lower_bound(random() % (64 * kChunk));
      if (victim == model.end()) victim = model.begin();
      extents.free(victim->first);
      used -= victim->second;
      model.erase(victim);
    } else if (const auto got = extents.allocate(1 + random() % (4 * kChunk))) {
      const auto after = model.upper_bound(got->start);
      ASSERT_TRUE(after == model.end() || got->end() <= after->first);
      if (after != model.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + before->second, got->start);
      }
      ASSERT_LE(got->end(), 64 * kChunk);
      model.emplace(got->start, got->bytes);
      used += got->bytes;
    }
    if (i % 100 == 0) {
      for (const Extent& stale : stale_of_period(extents)) {
        const auto after = model.lower_bound(stale.start);
        ASSERT_TRUE(after == model.end() || stale.end() <= after->first);
      }
    }
    ASSERT_EQ(extents.used(), used);
  }
  for (const auto& [start, bytes] : model) extents.free(start);
  EXPECT_EQ(extents.allocate(64 * kChunk), (Extent{0, 64 * kChunk}));
}

}  // namespace
}  // namespace weft::arena

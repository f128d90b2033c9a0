// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/choice.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::collective {
namespace {

using testing::ElementsAre;

constexpr int64_t kKibi = 1024;
constexpr int64_t kMebi = 1024 * 1024;

struct ChoiceCase {
  int64_t bytes;
  size_t members;
  AllReduceWay way;
  size_t segments;
};

TEST(Choice, OfAllReduceIsByBytesAndMembers) {
  for (const auto& [bytes, members, way, segments] :
       {ChoiceCase{4 * kKibi, 1, AllReduceWay::kShares, 1},
        ChoiceCase{4 * kKibi, 2, AllReduceWay::kDirect, 1},
        ChoiceCase{kMebi, 2, AllReduceWay::kDirect, 1},
        ChoiceCase{kMebi + 1, 2, AllReduceWay::kShares, 1},
        ChoiceCase{25 * kMebi, 2, AllReduceWay::kShares, 7},
        ChoiceCase{64 * kKibi, 7, AllReduceWay::kDirect, 1},
        ChoiceCase{64 * kKibi, 8, AllReduceWay::kDoubling, 1},
        ChoiceCase{64 * kKibi + 1, 8, AllReduceWay::kShares, 1},
        ChoiceCase{25 * kMebi, 4, AllReduceWay::kShares, 4},
        ChoiceCase{25 * kMebi, 8, AllReduceWay::kShares, 2},
        ChoiceCase{25 * kMebi, 9, AllReduceWay::kShares, 1},
        ChoiceCase{int64_t{1} << 40, 2, AllReduceWay::kShares, 64},
        ChoiceCase{0, 300, AllReduceWay::kDoubling, 1}}) {
    const AllReduceChoice got = choose_all_reduce(AllReduceWay::kAutomatic, bytes, members);
    EXPECT_EQ(got.way, way) << bytes << " bytes of " << members;
    EXPECT_EQ(got.segments, segments) << bytes << " bytes of " << members;
  }
}

TEST(Choice, OfAllReduceIsWhatTheGroupWants) {
  for (const auto way : {AllReduceWay::kDirect, AllReduceWay::kDoubling, AllReduceWay::kShares}) {
    for (const int64_t bytes : {int64_t{4}, 100 * kMebi})
      EXPECT_EQ(choose_all_reduce(way, bytes, 5).way, way);
    EXPECT_EQ(choose_all_reduce(way, 4, 1).way, AllReduceWay::kShares) << "nobody to send to";
  }
}

TEST(Choice, ATreeReachesAllOnceAndNobodySendsOften) {
  for (size_t size = 1; size <= 40; ++size) {
    for (size_t root = 0; root < size; ++root) {
      std::set<size_t> reached{root};
      for (size_t own = 0; own < size; ++own) {
        const BroadcastTree tree = broadcast_tree({own, size}, root);
        EXPECT_EQ(tree.parent.has_value(), own != root);
        EXPECT_LE(tree.children.size(), 6u);
        for (const size_t child : tree.children) {
          EXPECT_TRUE(reached.insert(child).second);
          EXPECT_EQ(broadcast_tree({child, size}, root).parent, own);
        }
      }
      EXPECT_EQ(reached.size(), size);
    }
  }
}

TEST(Choice, ATreeOfEight) {
  EXPECT_THAT(broadcast_tree({0, 8}, 0).children, ElementsAre(4, 2, 1));
  EXPECT_THAT(broadcast_tree({4, 8}, 0).children, ElementsAre(6, 5));
  EXPECT_THAT(broadcast_tree({7, 8}, 0).children, ElementsAre());
  EXPECT_THAT(broadcast_tree({1, 8}, 1).children, ElementsAre(5, 3, 2));
}

}  // namespace
}  // namespace weft::collective

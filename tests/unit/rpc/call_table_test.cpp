// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/calling/call_table.h"

#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using base::Time;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

struct Call {};
using Table = CallTable<Call*>;

constexpr Time at(int ms) { return Time(milliseconds(ms)); }

TEST(CallTable, GivesACallBackOnce) {
  Table table;
  Call call;
  const uint64_t id = table.open(&call, at(10));

  EXPECT_TRUE(table.contains(id));
  EXPECT_EQ(table.take(id), &call);

  EXPECT_FALSE(table.contains(id));
  EXPECT_EQ(table.take(id), nullptr);
  EXPECT_TRUE(table.empty());
}

TEST(CallTable, OpenCallsHaveDistinctIds) {
  Table table;
  Call call;
  std::set<uint64_t> ids;

  for (int i = 0; i < 1000; ++i) ids.insert(table.open(&call, at(10)));

  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(table.size(), 1000u);
}

TEST(CallTable, NoIdIsZero) {
  Table table;
  Call call;

  EXPECT_NE(table.open(&call, at(10)), 0u);
}

TEST(CallTable, AReusedSlotHasAnotherId) {
  Table table;
  Call first, second;
  const uint64_t old_id = table.open(&first, at(10));
  table.take(old_id);

  const uint64_t new_id = table.open(&second, at(10));

  EXPECT_NE(new_id, old_id);
  EXPECT_EQ(table.take(old_id), nullptr);
  EXPECT_EQ(table.take(new_id), &second);
}

TEST(CallTable, AnIdThatWasNeverGivenFindsNothing) {
  Table table;
  Call call;
  const uint64_t id = table.open(&call, at(10));

  for (const uint64_t wrong : {uint64_t{0}, id + 1, id + (uint64_t{1} << 32), UINT64_MAX}) {
    EXPECT_EQ(table.take(wrong), nullptr) << wrong;
  }

  EXPECT_EQ(table.size(), 1u);
}

TEST(CallTable, TakesExpiredCallsOnly) {
  Table table;
  Call early, late;
  table.open(&late, at(20));
  const uint64_t early_id = table.open(&early, at(10));

  EXPECT_THAT(table.take_expired(at(9)), IsEmpty());
  EXPECT_THAT(table.take_expired(at(10)), ElementsAre(&early));

  EXPECT_EQ(table.take(early_id), nullptr);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.earliest_deadline(), at(20));
}

TEST(CallTable, ACallWithoutDeadlineNeverExpires) {
  Table table;
  Call call;
  table.open(&call, Time::max());

  EXPECT_EQ(table.earliest_deadline(), Time::max());
  EXPECT_THAT(table.take_expired(at(1 << 30)), IsEmpty());
  EXPECT_EQ(table.size(), 1u);
}

TEST(CallTable, TheEarliestDeadlineIsALowerBound) {
  Table table;
  Call call;
  const uint64_t early = table.open(&call, at(10));
  table.open(&call, at(20));
  table.take(early);

  EXPECT_LE(table.earliest_deadline(), at(20));
  table.take_expired(at(15));
  EXPECT_EQ(table.earliest_deadline(), at(20));
}

TEST(CallTable, TakesAllWhenThePeerIsLost) {
  Table table;
  Call first, second, third;
  const uint64_t answered = table.open(&first, at(10));
  table.open(&second, at(20));
  table.open(&third, Time::max());
  table.take(answered);

  EXPECT_THAT(table.take_all(), UnorderedElementsAre(&second, &third));

  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.earliest_deadline(), Time::max());
}

TEST(CallTable, EveryCallLeavesExactlyOnceWhateverTheOrder) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    Table table;
    std::vector<Call> calls(200);
    std::map<uint64_t, Call*> open;
    std::vector<uint64_t> closed;
    std::map<Call*, int> left;
    int now = 0;
    size_t next = 0;

    while (next < calls.size() || !open.empty()) {
      const auto action = random() % 8;
      if (action < 4 && next < calls.size()) {
        Call* call = &calls[next++];
        open[table.open(call, at(now + 1 + static_cast<int>(random() % 50)))] = call;
      } else if (action < 6 && !open.empty()) {
        auto chosen = std::next(open.begin(), static_cast<long>(random() % open.size()));
        if (Call* call = table.take(chosen->first)) ++left[call];
        closed.push_back(chosen->first);
        open.erase(chosen);
      } else if (action < 7) {
        for (Call* call : table.take_expired(at(now += 5))) {
          ++left[call];
          std::erase_if(open, [call](const auto& each) { return each.second == call; });
        }
      }
      if (!closed.empty()) {
        ASSERT_EQ(table.take(closed[random() % closed.size()]), nullptr) << "seed " << seed;
      }
    }

    for (Call& call : calls) ASSERT_EQ(left[&call], 1) << "seed " << seed;
    ASSERT_TRUE(table.empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::rpc

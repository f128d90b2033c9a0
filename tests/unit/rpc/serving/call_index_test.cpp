// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/call_index.h"

#include <deque>
#include <set>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

struct Indexed {
  explicit Indexed(uint64_t number) : number(number) {}
  uint64_t id() const {
    ++looked_at;
    return number;
  }
  uint64_t number;
  Indexed* next = nullptr;
  Indexed* previous = nullptr;
  static inline uint64_t looked_at = 0;
};

bool has(CallIndex<Indexed>& index, uint64_t id) {
  return index.find(id, [](Indexed&) { return true; });
}

TEST(CallIndex, FindsWhatWasAddedUntilItIsRemoved) {
  CallIndex<Indexed> index;
  std::deque<Indexed> calls;
  for (uint64_t id = 0; id < 1000; ++id) index.add(calls.emplace_back(id << 32 | id % 7));

  for (uint64_t id = 0; id < 1000; id += 2) index.remove(calls[id]);

  EXPECT_EQ(index.size(), 500u);
  for (const Indexed& call : calls)
    EXPECT_EQ(has(index, call.number), (call.number >> 32) % 2 == 1);
  std::set<uint64_t> seen;
  index.for_each([&seen](Indexed& call) { seen.insert(call.number); });
  EXPECT_EQ(seen.size(), 500u);
}

TEST(CallIndex, TellsCallsOfOneIdApart) {
  CallIndex<Indexed> index;
  Indexed first(7), second(7);
  index.add(first);
  index.add(second);
  int tried = 0;

  EXPECT_FALSE(index.find(7, [&tried](Indexed&) { return ++tried, false; }));
  EXPECT_EQ(tried, 2);

  index.remove(second);
  EXPECT_TRUE(index.find(7, [&first](Indexed& call) { return &call == &first; }));
}

// A caller that gives up 40,000 calls at once must not cost 40,000 x 40,000 steps.
TEST(CallIndex, FindingTakesFewStepsHoweverManyThereAre) {
  CallIndex<Indexed> index;
  std::deque<Indexed> calls;
  constexpr uint64_t kCalls = 40'000;
  for (uint64_t id = 0; id < kCalls; ++id) index.add(calls.emplace_back(uint64_t{1} << 32 | id));
  Indexed::looked_at = 0;

  for (const Indexed& call : calls) EXPECT_TRUE(has(index, call.number));

  EXPECT_LT(Indexed::looked_at, 4 * kCalls);
}

}  // namespace
}  // namespace weft::rpc

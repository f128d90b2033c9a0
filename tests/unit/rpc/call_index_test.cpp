// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/call_index.h"

#include <deque>
#include <set>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

struct Call {
  explicit Call(uint64_t number) : number(number) {}
  uint64_t id() const {
    ++looked_at;
    return number;
  }
  uint64_t number;
  Call* next = nullptr;
  Call* previous = nullptr;
  static inline uint64_t looked_at = 0;
};

bool has(CallIndex<Call>& index, uint64_t id) {
  return index.find(id, [](Call&) { return true; });
}

TEST(CallIndex, FindsWhatWasAddedUntilItIsRemoved) {
  CallIndex<Call> index;
  std::deque<Call> calls;
  for (uint64_t id = 0; id < 1000; ++id) index.add(calls.emplace_back(id << 32 | id % 7));

  for (uint64_t id = 0; id < 1000; id += 2) index.remove(calls[id]);

  EXPECT_EQ(index.size(), 500u);
  for (const Call& call : calls) EXPECT_EQ(has(index, call.number), (call.number >> 32) % 2 == 1);
  std::set<uint64_t> seen;
  index.for_each([&seen](Call& call) { seen.insert(call.number); });
  EXPECT_EQ(seen.size(), 500u);
}

TEST(CallIndex, TellsCallsOfOneIdApart) {
  CallIndex<Call> index;
  Call first(7), second(7);
  index.add(first);
  index.add(second);
  int tried = 0;

  EXPECT_FALSE(index.find(7, [&tried](Call&) { return ++tried, false; }));
  EXPECT_EQ(tried, 2);

  index.remove(second);
  EXPECT_TRUE(index.find(7, [&first](Call& call) { return &call == &first; }));
}

// A caller that gives up 40,000 calls at once must not cost 40,000 x 40,000 steps.
TEST(CallIndex, FindingTakesFewStepsHoweverManyThereAre) {
  CallIndex<Call> index;
  std::deque<Call> calls;
  constexpr uint64_t kCalls = 40'000;
  for (uint64_t id = 0; id < kCalls; ++id) index.add(calls.emplace_back(uint64_t{1} << 32 | id));
  Call::looked_at = 0;

  for (const Call& call : calls) EXPECT_TRUE(has(index, call.number));

  EXPECT_LT(Call::looked_at, 4 * kCalls);
}

}  // namespace
}  // namespace weft::rpc

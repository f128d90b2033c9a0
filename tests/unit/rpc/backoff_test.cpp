// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/io/backoff.h"

#include <set>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using base::Time;

constexpr Time kNow{1h};

TEST(Backoff, TheFirstTryIsAtOnce) {
  const Backoff backoff(1);

  EXPECT_TRUE(backoff.may_try(kNow));
}

TEST(Backoff, WaitsLongerAfterEveryFailureUpToHalfASecond) {
  const base::Duration steps[] = {20ms, 40ms, 80ms, 160ms, 320ms, 500ms, 500ms, 500ms};
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Backoff backoff(seed);
    for (const base::Duration step : steps) {
      backoff.on_failure(kNow);

      ASSERT_GE(backoff.next() - kNow, step / 2) << "seed " << seed;
      ASSERT_LT(backoff.next() - kNow, step) << "seed " << seed;
      ASSERT_FALSE(backoff.may_try(kNow));
      ASSERT_TRUE(backoff.may_try(backoff.next()));
    }
  }
}

TEST(Backoff, StartsAgainAfterSuccess) {
  Backoff backoff(7);
  for (int i = 0; i < 10; ++i) backoff.on_failure(kNow);

  backoff.on_success();
  backoff.on_failure(kNow);

  EXPECT_LT(backoff.next() - kNow, 20ms);
}

TEST(Backoff, PeersDoNotAllKnockTogether) {
  std::set<Time> tries;

  for (uint64_t seed = 0; seed < 64; ++seed) {
    Backoff backoff(seed << 32 | 2 * seed);
    for (int i = 0; i < 5; ++i) backoff.on_failure(kNow);
    tries.insert(backoff.next());
  }

  EXPECT_GT(tries.size(), 60u);
}

}  // namespace
}  // namespace weft::rpc

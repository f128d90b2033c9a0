// The first call after a connection broke unnoticed is sent on a new one.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>

#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/future.h"

namespace weft::broken_while_idle {

// Its codec keeps the thread that receives in the middle of a reply until the test lets it go on.
struct Slow {};
std::atomic<bool> decoding{false};
std::atomic<bool> goes_on{false};
Slow make_slow() { return {}; }
int64_t twice(int64_t n) { return 2 * n; }

}  // namespace weft::broken_while_idle

namespace weft {

template <>
struct Codec<broken_while_idle::Slow> {
  static void encode(Encoder&, const broken_while_idle::Slow&) {}
  static broken_while_idle::Slow decode(Decoder&) {
    broken_while_idle::decoding = true;
    test::eventually([] { return broken_while_idle::goes_on.load(); });
    return {};
  }
  static void describe(TypeDescription& out) { out.add("Slow"); }
};

namespace broken_while_idle {

TEST(BrokenWhileIdle, IsNoticedByTheCallerWhenTheLoopIsHeldUp) {
  decoding = goes_on = false;
  test::LoopbackGroup group({"a", "b"});
  Agent& caller = group[1];
  ASSERT_EQ(caller.sync<twice>("a", 1), 2);
  const Future<Slow> slow = caller.async<make_slow>("a");
  slow.on_ready([](const Future<Slow>&) {});  // so the loop receives
  ASSERT_TRUE(test::eventually([] { return decoding.load(); }));

  group.network().break_all();
  const Future<int64_t> after = caller.async<twice>("a", 21);
  goes_on = true;

  EXPECT_EQ(after.wait(), 42);
}

}  // namespace broken_while_idle
}  // namespace weft

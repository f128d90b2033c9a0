// The time limit of to_here when the connection breaks over it.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/current_call.h"
#include "weft/rref.h"

namespace weft::to_here_test {

using namespace std::chrono_literals;
using test::eventually;

// Its codec keeps the owner at the reply until the test lets it go.
struct Slow {};
std::atomic<bool> let_go{false};
std::mutex mutex;
std::vector<std::chrono::nanoseconds> time_left;  // of the calls, as the owner sees it
Slow make_slow() { return {}; }

size_t replying() {
  const std::lock_guard lock(mutex);
  return time_left.size();
}

}  // namespace weft::to_here_test

namespace weft {

template <>
struct Codec<to_here_test::Slow> {
  static void encode(Encoder&, const to_here_test::Slow&) {
    {
      const std::lock_guard lock(to_here_test::mutex);
      to_here_test::time_left.push_back(current_call::remaining().value());
    }
    test::eventually([] { return to_here_test::let_go.load(); }, std::chrono::seconds(300));
  }
  static to_here_test::Slow decode(Decoder&) { return {}; }
  static void describe(TypeDescription& out) { out.add("Slow"); }
};

namespace to_here_test {

TEST(ToHere, ASecondAttemptHasTheTimeThatTheFirstOneLeft) {
  let_go = false;
  time_left.clear();
  test::LoopbackGroup group({"a", "b"});
  const RRef<Slow> slow = remote<make_slow>(group[0], "b");
  ASSERT_TRUE(eventually([&] { return slow.confirmed_by_owner(); }));
  std::thread waits([&] { EXPECT_NO_THROW(slow.to_here(60s)); });

  EXPECT_TRUE(eventually([] { return replying() == 1; }));
  std::this_thread::sleep_for(1s);  // that the first attempt takes
  group.network().break_all();
  EXPECT_TRUE(eventually([] { return replying() == 2; }));
  let_go = true;
  waits.join();

  ASSERT_EQ(time_left.size(), 2u);
  EXPECT_LE(time_left[0], 60s);
  EXPECT_LE(time_left[1], 59s);
  group.shut_down();
}

}  // namespace to_here_test
}  // namespace weft

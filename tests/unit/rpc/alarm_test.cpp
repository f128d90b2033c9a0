// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/io/alarm.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

// The loop clears the due time and then calls on_time(); a set() of another thread may come
// between.
TEST(Alarm, KeepsATimeThatIsSetWhileItIsAboutToRing) {
  IoLoop io(std::make_shared<base::SteadyClock>());
  int rings = 0;
  const auto alarm = Alarm::make(io, [&rings] { ++rings; });
  const base::Time due = base::Time() + std::chrono::hours(1);

  alarm->set(due);
  alarm->on_time(base::Time());
  io.finish();  // runs what the alarm posted

  EXPECT_EQ(rings, 1);
  EXPECT_EQ(alarm->due(), due);
  alarm->remove();
}

TEST(Alarm, SetByKeepsAnEarlierTime) {
  IoLoop io(std::make_shared<base::SteadyClock>());
  const auto alarm = Alarm::make(io, [] {});
  const base::Time early = base::Time() + std::chrono::hours(1);

  alarm->set_by(early);
  alarm->set_by(early + std::chrono::hours(1));
  EXPECT_EQ(alarm->due(), early);

  alarm->set_by(early - std::chrono::minutes(1));
  EXPECT_EQ(alarm->due(), early - std::chrono::minutes(1));
  alarm->remove();
}

TEST(Alarm, RingsAgainIfARingLackedMemory) {
  IoLoop io(std::make_shared<base::SteadyClock>());
  const auto alarm = Alarm::make(io, [] { throw std::bad_alloc(); });
  const base::Time before = io.clock().now();

  alarm->on_time(before);
  io.finish();

  EXPECT_GT(alarm->due(), before);
  EXPECT_LT(alarm->due(), before + std::chrono::hours(1));
  alarm->remove();
}

}  // namespace
}  // namespace weft::rpc

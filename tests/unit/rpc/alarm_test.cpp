// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/alarm.h"

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

  EXPECT_EQ(rings, 1);
  EXPECT_EQ(alarm->due(), due);
  alarm->remove();
}

}  // namespace
}  // namespace weft::rpc

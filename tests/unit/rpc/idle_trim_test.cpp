// An agent that has nothing to do gives memory back.
// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/idle_trim.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"

namespace weft::idle_trim {

using test::eventually;

at::Tensor zeros(int64_t elements) { return at::zeros({elements}); }

class IdleTrim : public testing::Test {
 protected:
  uint64_t kept() { return group_[0].debug_info().counters.at("memory.receive_pool"); }
  // The last holder of the tensor's memory may be a thread that has just handed the reply on.
  bool receive() {
    group_[0].sync<zeros>("b", int64_t{1} << 20);
    return eventually([&] { return kept() > 0; });
  }

  // The clock runs ahead of threads that lack a CPU: their silence means nothing.
  static Options without_heartbeat() {
    Options options;
    options.heartbeat_interval = options.suspect_after = std::chrono::hours(1000);
    options.dead_after = std::chrono::hours(1001);
    return options;
  }

  std::shared_ptr<base::ManualClock> clock_ = std::make_shared<base::ManualClock>();
  test::LoopbackGroup group_{{"a", "b"}, without_heartbeat(), clock_};
};

// The clock advances until it happens: the tick that sees the activity comes when it comes.
TEST_F(IdleTrim, EmptiesTheReceivePoolOnceNothingHappens) {
  ASSERT_TRUE(receive());

  EXPECT_TRUE(eventually([&] {
    clock_->advance(rpc::IdleTrim::kIdle / 4);
    return kept() == 0;
  }));

  EXPECT_TRUE(receive());
  EXPECT_TRUE(eventually([&] {
    clock_->advance(rpc::IdleTrim::kIdle / 4);
    return kept() == 0;
  }));
}

TEST_F(IdleTrim, LeavesThePoolAloneWhileCallsAreMade) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(receive());
    clock_->advance(rpc::IdleTrim::kIdle / 4);
    EXPECT_GT(kept(), 0u) << i;
  }
}

}  // namespace weft::idle_trim

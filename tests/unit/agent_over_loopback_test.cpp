// A group of agents in one process: calls, errors and faults without sockets of the host.
// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"

namespace weft {
namespace {

int64_t twice(int64_t n) { return 2 * n; }
at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }

TEST(AgentOverLoopback, CallsWork) {
  test::LoopbackGroup group({"a", "b"});

  EXPECT_EQ(group[0].sync<twice>("b", 21), 42);
  EXPECT_EQ(group[1].sync<twice>("a", 4), 8);
  EXPECT_EQ(group[1].sync<twice>("b", 5), 10);
  EXPECT_TRUE(at::equal(group[0].sync<add>("b", at::ones(3), at::ones(3)), at::full({3}, 2.0)));

  group.shut_down();
}

}  // namespace
}  // namespace weft

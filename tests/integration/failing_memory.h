// Allocations that fail when a test says so, in place of those that the system refuses: these come
// too rarely, and elsewhere each time.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <cstdint>

namespace weft::test {

/// Of the allocations of `at_least` bytes or more that all threads of this process make with `new`
/// from now on, the first `after` go well and the next `count` fail, for `period` at most. Under a
/// sanitizer, which has a `new` of its own, none fails.
struct Shortage {
  int64_t after = 0;
  int64_t count = 0;
  int64_t at_least = 0;
  std::chrono::milliseconds period{0};
};
void fail_allocations(const Shortage& shortage);

/// How many have failed in this process.
int64_t failed_allocations();

}  // namespace weft::test

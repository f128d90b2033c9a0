// The tests' own means: the workers that a test starts.
// SPDX-License-Identifier: BSD-3-Clause
#include <stdexcept>

#include <gtest/gtest.h>

#include "support/scenario.h"

namespace weft::test {
namespace {

SCENARIO(workers_ends_early) { return rank + 7; }

TEST(WorkersOfTests, ReleaseOfAWorkerThatHasEndedFailsTheTestAndNoOther) {
  Workers workers("workers_ends_early", 1);
  ASSERT_EQ(workers.wait(0), 7);

  EXPECT_THROW(workers.release(0), std::runtime_error);
}

}  // namespace
}  // namespace weft::test

// The hybrid example trains on four workers, and does so alike in every run.
// SPDX-License-Identifier: BSD-3-Clause

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launched_program.h"

namespace weft {
namespace {

using test::LaunchedProgram;

// What the trainers say of their epochs, by trainer: their lines come in any order.
std::vector<std::string> epochs(std::vector<std::string> options) {
  options.insert(options.begin(), WEFT_HYBRID_EXAMPLE);
  LaunchedProgram example(options, {{"OMP_NUM_THREADS", "1"}});  // other tests run beside it
  EXPECT_EQ(example.exit_code(), 0) << example.error();

  std::vector<std::string> lines;
  std::istringstream output(example.output());
  for (std::string line; std::getline(output, line);) {
    if (line.find("Training done") != std::string::npos) {
      lines.push_back(line.substr(line.find("trainer")));
    }
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(HybridExample, SameSeedGivesTheSameLosses) {
  const auto once = epochs({"--epochs", "2", "--seed", "5"});
  const auto again = epochs({"--epochs", "2", "--seed", "5"});

  EXPECT_THAT(once, testing::ElementsAre(
                        testing::StartsWith("trainer0\tTraining done for epoch 0\tmean loss: "),
                        testing::StartsWith("trainer0\tTraining done for epoch 1\tmean loss: "),
                        testing::StartsWith("trainer1\tTraining done for epoch 0\tmean loss: "),
                        testing::StartsWith("trainer1\tTraining done for epoch 1\tmean loss: ")));
  EXPECT_EQ(again, once);
}

TEST(HybridExample, AnotherSeedGivesOtherLosses) {
  EXPECT_NE(epochs({"--epochs", "1", "--seed", "5"}), epochs({"--epochs", "1", "--seed", "6"}));
}

}  // namespace
}  // namespace weft

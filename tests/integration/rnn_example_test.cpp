// The model-parallel example learns what the same model learns in one process.
// SPDX-License-Identifier: BSD-3-Clause

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launched_program.h"

namespace weft {
namespace {

using test::LaunchedProgram;
using test::TestDirectory;

// What the example prints behind each `label`.
std::vector<double> numbers_after(const std::string& label, const std::string& text) {
  std::vector<double> numbers;
  for (size_t at = 0; (at = text.find(label, at)) != std::string::npos;) {
    at += label.size();
    numbers.push_back(std::stod(text.substr(at)));
  }
  return numbers;
}

std::string output_of_example(std::vector<std::string> options) {
  options.insert(options.begin(), WEFT_RNN_EXAMPLE);
  LaunchedProgram example(options, {{"OMP_NUM_THREADS", "1"}});  // other tests run beside it
  EXPECT_EQ(example.exit_code(), 0) << example.error();
  return example.output();
}

std::vector<double> losses(std::vector<std::string> options) {
  options.insert(options.end(), {"--dropout", "0", "--print-losses"});
  return numbers_after("\nloss: ", "\n" + output_of_example(options));
}

void expect_same(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-5 * std::abs(expected[i])) << "iteration " << i;
  }
}

TEST(RnnExample, LossesAreThoseOfOneProcess) {
  const auto distributed = losses({});
  const auto local = losses({"--local"});

  EXPECT_EQ(local.size(), 50U);
  expect_same(distributed, local);
}

class RnnExampleOnText : public testing::Test {
 protected:
  void SetUp() override { output_of_example({"--make-text", text}); }

  const TestDirectory directory;
  const std::string text = directory / "text";
};

// The tutorial's data is noise: there is little in it for a wrong gradient to spoil.
TEST_F(RnnExampleOnText, LossesAreThoseOfOneProcess) {
  const auto distributed = losses({"--text", text, "--iterations", "10"});
  const auto local = losses({"--text", text, "--iterations", "10", "--local"});

  EXPECT_LT(local.back(), 0.9 * local.front());
  expect_same(distributed, local);
}

TEST_F(RnnExampleOnText, PerplexityFalls) {
  const auto perplexities = numbers_after(
      "perplexity: ",
      output_of_example({"--text", text, "--iterations", "40", "--log-interval", "20"}));

  ASSERT_EQ(perplexities.size(), 2U);
  EXPECT_LT(perplexities[1], 0.95 * perplexities[0]);
}

}  // namespace
}  // namespace weft

// Random computations over two to five workers get the gradients that torch computes locally.
//
// WEFT_GRAPHS says how many graphs (2000), WEFT_GRAPH_SEED runs a single one.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"
#include "weft/autograd.h"

namespace weft::random_graphs {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

enum class LooseEnds { kSettled, kLeft };

/// None of a worker that had no part in the context.
autograd::Gradients gradients_of(Agent& agent, int64_t context) {
  try {
    return autograd::gradients(agent, context);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return {};
  }
}

/// One in `share` of all graphs.
std::vector<uint64_t> choose_seeds(uint64_t share, uint64_t first) {
  const char* single = std::getenv("WEFT_GRAPH_SEED");
  if (single) return {std::strtoull(single, nullptr, 10)};
  const char* wanted = std::getenv("WEFT_GRAPHS");
  const uint64_t graphs = wanted ? std::strtoull(wanted, nullptr, 10) : 2000;
  std::vector<uint64_t> seeds(graphs / share / test::kSlowness);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = first + i;
  return seeds;
}

class RandomGraphs : public testing::Test {
 protected:
  void TearDown() override {
    const auto limit = Clock::now() + 10s;
    for (size_t rank = 0; rank < kWorkers; ++rank) {
      const auto contexts = [&] { return autograd::census(group[rank]).contexts; };
      while (contexts() > 0 && Clock::now() < limit) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(contexts(), 0u) << "on worker " << rank;
    }
    if (!HasFailure()) group.shut_down();  // what is on its way ends first
  }

  void expect_agreement(const std::vector<uint64_t>& seeds, int passes, LooseEnds loose_ends) {
    for (const uint64_t seed : seeds) ASSERT_TRUE(agrees(seed, passes, loose_ends));
  }

  // On any thread. What is thrown is reported here, where the seed is known.
  testing::AssertionResult agrees(uint64_t seed, int passes, LooseEnds loose_ends) {
    std::string wrong;
    try {
      wrong = run(make_program(seed), passes, loose_ends);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    if (wrong.empty()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "WEFT_GRAPH_SEED=" << seed << ": " << wrong;
  }

  std::string run(const Program& program, int passes, LooseEnds loose_ends) {
    const Leaves expected = make_leaves(program.id);
    const at::Tensor expected_loss = run_locally(program, expected);
    Agent& driver = group[program.id % kDrivers];
    Values results;
    autograd::Context context(driver);
    results = run_spread(driver, program);
    const std::vector<at::Tensor> losses =
        losses_of(program, [&results](uint32_t root) { return tensor_of(results.at(root)); });
    if (loose_ends == LooseEnds::kSettled) settle(program, results);
    const std::string loss = difference(expected_loss, sum_of(losses).detach());
    if (!loss.empty()) return "the loss: " + loss;
    for (int i = 1; i <= passes; ++i) context.backward(losses, {.retain_graph = i < passes});
    if (program.id / kDrivers % 2 == 0) results.clear();  // before the context ends; or after
    return compare(program, context.id(), expected, passes);
  }

  std::string compare(const Program& program, int64_t context, const Leaves& expected, int passes) {
    const Leaves leaves = leaves_of(program.id);
    for (size_t rank = 0; rank < kWorkers; ++rank) {
      const size_t gradients = gradients_of(group[rank], context).size();
      size_t known = 0;
      for (size_t i = 0; i < kLeavesEach; ++i) {
        at::Tensor wanted = expected[rank][i].grad();
        if (wanted.defined()) wanted = wanted * passes;
        at::Tensor got;
        if (gradients > 0) got = autograd::gradient(group[rank], context, leaves[rank][i]);
        if (got.defined()) ++known;
        std::string wrong = difference(wanted, got);
        if (leaves[rank][i].grad().defined()) wrong += ".grad was touched";
        if (!wrong.empty()) return c10::str("worker ", rank, ", leaf ", i, ": ", wrong);
      }
      if (known != gradients) return c10::str("worker ", rank, ": a gradient of what is no leaf");
      if (rank != program.id % kDrivers) gradients_elsewhere += known;
    }
    return {};
  }

  test::LoopbackGroup group{{"a", "b", "c", "d", "e"}};
  std::atomic<size_t> gradients_elsewhere{0};  // than on the driver
};

TEST_F(RandomGraphs, GiveTheGradientsOfALocalRun) {
  const std::vector<uint64_t> seeds = choose_seeds(1, 0);
  expect_agreement(seeds, 1, LooseEnds::kSettled);
  EXPECT_GE(gradients_elsewhere.load(), seeds.size() / 2);  // else the graphs would show little
}

TEST_F(RandomGraphs, GiveThemAgainWhenTheGraphIsRetained) {
  expect_agreement(choose_seeds(8, 1'000'000), 2, LooseEnds::kSettled);
}

// A result that is never asked for may be computed during the pass, or after the context's end.
TEST_F(RandomGraphs, MayLeaveUnusedResultsOnTheirWay) {
  expect_agreement(choose_seeds(8, 2'000'000), 1, LooseEnds::kLeft);
}

TEST_F(RandomGraphs, OfSeveralDriversRunAtTheSameTime) {
  std::vector<uint64_t> seeds = choose_seeds(20, 3'000'000);
  std::vector<std::thread> drivers;
  for (uint64_t driver = 0; driver < kDrivers; ++driver) {
    drivers.emplace_back([this, seeds, driver]() mutable {
      std::erase_if(seeds, [driver](uint64_t seed) { return seed % kDrivers != driver; });
      expect_agreement(seeds, 1, LooseEnds::kSettled);
    });
  }
  for (std::thread& thread : drivers) thread.join();
}

}  // namespace weft::random_graphs

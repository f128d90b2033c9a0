// SPDX-License-Identifier: BSD-3-Clause
#include "weft/optim/schedulers.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "weft/error.h"
#include "weft/optim/adamax.h"

namespace weft::optim {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;
using Lrs = std::vector<double>;

std::vector<torch::optim::OptimizerParamGroup> groups(const Lrs& lrs) {
  std::vector<torch::optim::OptimizerParamGroup> made;
  for (const double lr : lrs) {
    made.emplace_back(std::vector{at::zeros({1})}, std::make_unique<SGDOptions>(lr));
  }
  return made;
}

Lrs lrs(const torch::optim::Optimizer& optimizer) {
  Lrs current;
  for (const auto& group : optimizer.param_groups()) current.push_back(group.options().get_lr());
  return current;
}

// --- the reference -----------------------------------------------------------------------------

struct Case {
  std::string title, kind;
  std::map<std::string, double> options;
  Lrs bases;
  std::vector<Lrs> closed, stepped;  // by group: the rate of each epoch
};

std::vector<Case> read_cases() {
  std::ifstream file(WEFT_TEST_DATA "/optimizer_reference.txt");
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first, word;
    words >> first;
    if (first == "schedule") {
      Case& added = cases.emplace_back();
      added.title = line;
      words >> added.kind;
      for (std::string value; words >> word >> value;) added.options[word] = std::stod(value);
    } else if (first == "base" || first == "closed" || first == "stepped") {
      Lrs values;
      while (words >> word) values.push_back(std::stod(word));
      if (first == "base") cases.back().bases.push_back(values.at(0));
      if (first == "closed") cases.back().closed.push_back(values);
      if (first == "stepped") cases.back().stepped.push_back(values);
    }
  }
  return cases;
}

std::unique_ptr<torch::optim::LRScheduler> make(const Case& of, SGD& optimizer) {
  if (of.kind == "CosineAnnealingLR") {
    return std::make_unique<CosineAnnealingLR>(
        optimizer, static_cast<unsigned>(of.options.at("T_max")), of.options.at("eta_min"));
  }
  return std::make_unique<WarmupLR>(optimizer, static_cast<unsigned>(of.options.at("total_iters")),
                                    of.options.at("start_factor"));
}

// The closed forms are equal bit for bit with the C library that made the file. PyTorch's step()
// goes from each rate to the next and rounds on its way.
TEST(Schedulers, RatesAreThoseOfPyTorch) {
  const std::vector<Case> cases = read_cases();
  ASSERT_EQ(cases.size(), 4u);
  for (const Case& each : cases) {
    SCOPED_TRACE(each.title);
    SGD optimizer(groups(each.bases), SGDOptions(1.0));
    const auto scheduler = make(each, optimizer);
    for (size_t epoch = 0; epoch <= 20; ++epoch) {
      for (size_t group = 0; group < 2; ++group) {
        const double lr = lrs(optimizer)[group];
        const double closed = each.closed.at(group).at(epoch);
        const double stepped = each.stepped.at(group).at(epoch);
        EXPECT_NEAR(lr, closed, 1e-15 * each.bases[group]) << epoch;
        EXPECT_NEAR(lr, stepped, 1e-12 * each.bases[group]) << epoch;
      }
      scheduler->step();
    }
  }
}

// --- one by one --------------------------------------------------------------------------------

TEST(CosineAnnealingLR, EndsAtTheMinimumAndStays) {
  SGD optimizer(groups({0.5, 0.25}), SGDOptions(1.0));
  CosineAnnealingLR schedule(optimizer, 4, 0.125);
  EXPECT_EQ(lrs(optimizer), (Lrs{0.5, 0.25}));

  schedule.step();
  schedule.step();
  EXPECT_DOUBLE_EQ(lrs(optimizer)[0], (0.5 + 0.125) / 2);
  EXPECT_DOUBLE_EQ(lrs(optimizer)[1], (0.25 + 0.125) / 2);
  schedule.step();
  EXPECT_GT(lrs(optimizer)[1], 0.125);
  for (int i = 0; i < 10; ++i) {
    schedule.step();
    EXPECT_EQ(lrs(optimizer), (Lrs{0.125, 0.125}));
  }
}

TEST(WarmupLR, StartsAtConstructionAndEndsAtTheBases) {
  SGD optimizer(groups({0.5, 0.1}), SGDOptions(1.0));
  WarmupLR schedule(optimizer, 4, 0.5);
  EXPECT_EQ(lrs(optimizer), (Lrs{0.25, 0.05}));

  schedule.step();
  EXPECT_EQ(lrs(optimizer)[0], 0.3125);
  schedule.step();
  EXPECT_EQ(lrs(optimizer)[0], 0.375);
  schedule.step();
  EXPECT_EQ(lrs(optimizer)[0], 0.4375);
  for (int i = 0; i < 10; ++i) {
    schedule.step();
    EXPECT_EQ(lrs(optimizer), (Lrs{0.5, 0.1}));
  }
}

TEST(WarmupCosineLR, IsOneAfterTheOther) {
  const Lrs bases{0.5, 0.01};
  SGD optimizer(groups(bases), SGDOptions(1.0));
  SGD warming(groups(bases), SGDOptions(1.0));
  SGD annealing(groups(bases), SGDOptions(1.0));
  WarmupCosineLR schedule(optimizer, 3, 10, 1e-3, 0.25);
  WarmupLR warmup(warming, 3, 0.25);
  CosineAnnealingLR cosine(annealing, 7, 1e-3);

  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(lrs(optimizer), lrs(warming)) << i;
    schedule.step();
    warmup.step();
  }
  for (int i = 3; i < 15; ++i) {
    EXPECT_EQ(lrs(optimizer), lrs(annealing)) << i;
    schedule.step();
    cosine.step();
  }
  EXPECT_EQ(lrs(optimizer), (Lrs{1e-3, 1e-3}));
}

TEST(Schedulers, SetTheRateTheOptimizerUses) {
  const at::Tensor param = at::zeros({1}).requires_grad_();
  Adamax optimizer(std::vector{param}, AdamaxOptions(0.5).eps(0));
  WarmupLR schedule(optimizer, 2, 0.5);
  param.mutable_grad() = at::ones({1});

  // With a constant gradient of one, Adamax moves by the rate.
  optimizer.step();
  EXPECT_FLOAT_EQ(param.item<float>(), -0.25f);
  schedule.step();
  optimizer.step();
  EXPECT_FLOAT_EQ(param.item<float>(), -0.25f - 0.375f);
}

TEST(Schedulers, RefuseWhatMakesNoSense) {
  SGD optimizer(groups({0.5}), SGDOptions(1.0));
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::function<void()>> mistakes{
      [&] { CosineAnnealingLR(optimizer, 0); },
      [&] { CosineAnnealingLR(optimizer, 5, -0.1); },
      [&] { CosineAnnealingLR(optimizer, 5, nan); },
      [&] { CosineAnnealingLR(optimizer, 5, infinity); },
      [&] { WarmupLR(optimizer, 0); },
      [&] { WarmupLR(optimizer, 5, -0.1); },
      [&] { WarmupLR(optimizer, 5, 1.1); },
      [&] { WarmupLR(optimizer, 5, nan); },
      [&] { WarmupCosineLR(optimizer, 0, 10); },
      [&] { WarmupCosineLR(optimizer, 10, 10); },
      [&] { WarmupCosineLR(optimizer, 11, 10); },
      [&] { WarmupCosineLR(optimizer, 5, 10, -1); },
      [&] { WarmupCosineLR(optimizer, 5, 10, 0, -1); },
  };

  for (size_t i = 0; i < mistakes.size(); ++i) {
    try {
      mistakes[i]();
      ADD_FAILURE() << "mistake " << i << " was let through";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << i;
    }
    EXPECT_EQ(lrs(optimizer), Lrs{0.5}) << i;
  }
}

TEST(ClosedFormLR, ResumesAfterSomeSteps) {
  SGD straight(groups({0.1, 0.3}), SGDOptions(0.1)), resumed(groups({0.1, 0.3}), SGDOptions(0.1));
  WarmupCosineLR first(straight, 3, 20), second(resumed, 3, 20);
  for (int i = 0; i < 9; ++i) first.step();

  second.resume_after(9);
  EXPECT_EQ(lrs(resumed), lrs(straight));

  first.step();
  second.step();
  EXPECT_EQ(lrs(resumed), lrs(straight));
}

}  // namespace
}  // namespace weft::optim

// Adadelta, Adamax and Rprop: the numbers of PyTorch's, and what holds for any of them.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/serialize.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "optim/param_state.h"
#include "weft/optim/adadelta.h"
#include "weft/optim/adamax.h"
#include "weft/optim/rprop.h"

namespace weft::optim {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using torch::optim::OptimizerParamGroup;
using Params = std::vector<at::Tensor>;

// The same parameters and gradients as in make_optimizer_reference.py.

template <typename Value>
Params filled(at::ScalarType type, Value value) {
  Params tensors{at::empty({3, 4}, at::kDouble), at::empty({5}, at::kDouble)};
  int i = 0;
  for (at::Tensor& tensor : tensors) {
    for (int k = 0; k < tensor.numel(); ++k) tensor.data_ptr<double>()[k] = value(i++);
    tensor = tensor.to(type);
  }
  return tensors;
}

Params start(at::ScalarType type = at::kDouble) {
  Params params = filled(type, [](int i) { return (3 * i % 11 - 5) / 8.0; });
  for (at::Tensor& param : params) param.requires_grad_();
  return params;
}

Params gradients(int step, at::ScalarType type = at::kDouble) {
  return filled(type, [step](int i) {
    const int pace = std::vector{0, 1, 2, 11}[i % 4];
    return ((5 * i + pace * step) % 23 - 9) / 16.0;
  });
}

void run(torch::optim::Optimizer& optimizer, Params& params, int first, int last) {
  for (int step = first; step <= last; ++step) {
    const Params grads = gradients(step, params[0].scalar_type());
    for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = grads[i];
    optimizer.step();
  }
}

Params copy(const Params& params) {
  Params copies;
  for (const at::Tensor& param : params) copies.push_back(param.detach().clone().requires_grad_());
  return copies;
}

bool same(const Params& one, const Params& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const auto& a, const auto& b) { return a.equal(b); });
}

// --- the reference -----------------------------------------------------------------------------

struct Case {
  std::string title, kind;
  at::ScalarType type;
  std::map<std::string, std::vector<double>> options;
  std::map<int, std::vector<double>> after;  // by step: both parameters' elements

  double one(const std::string& name) const { return options.at(name).at(0); }
  std::tuple<double, double> two(const std::string& name) const {
    return {options.at(name).at(0), options.at(name).at(1)};
  }
};

std::vector<Case> read_cases() {
  std::ifstream file(WEFT_TEST_DATA "/optimizer_reference.txt");
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first, word;
    words >> first;
    if (first == "optimizer") {
      Case& added = cases.emplace_back();
      added.title = line;
      words >> added.kind >> word;
      added.type = word == "float32" ? at::kFloat : at::kDouble;
      for (std::string value; words >> word >> value;) {
        added.options[word].push_back(std::stod(value));
      }
    } else if (first == "after") {
      int step = 0;
      words >> step;
      while (words >> word) cases.back().after[step].push_back(std::stod(word));
    }
  }
  return cases;
}

std::unique_ptr<torch::optim::Optimizer> make(const Case& of, const Params& params) {
  if (of.kind == "Adadelta") {
    return std::make_unique<Adadelta>(params, AdadeltaOptions(of.one("lr"))
                                                  .rho(of.one("rho"))
                                                  .eps(of.one("eps"))
                                                  .weight_decay(of.one("weight_decay")));
  }
  if (of.kind == "Adamax") {
    return std::make_unique<Adamax>(params, AdamaxOptions(of.one("lr"))
                                                .betas(of.two("betas"))
                                                .eps(of.one("eps"))
                                                .weight_decay(of.one("weight_decay")));
  }
  return std::make_unique<Rprop>(
      params, RpropOptions(of.one("lr")).etas(of.two("etas")).step_sizes(of.two("step_sizes")));
}

// With the libtorch that made the file (1.13) all of them are equal bit for bit, float32 included;
// the tolerance is for other versions and processors, which may round a product and a sum once.
TEST(ReferenceNumbers, AreThoseOfPyTorch) {
  const std::vector<Case> cases = read_cases();
  ASSERT_EQ(cases.size(), 12u);
  for (const Case& each : cases) {
    SCOPED_TRACE(each.title);
    const double tolerance = each.type == at::kDouble ? 1e-12 : 1e-5;
    Params params = start(each.type);
    const auto optimizer = make(each, params);
    int done = 0;
    for (const auto& [step, expected] : each.after) {
      run(*optimizer, params, done + 1, step);
      done = step;
      const at::Tensor got = at::cat({params[0].flatten(), params[1]}).to(at::kDouble);
      ASSERT_EQ(got.numel(), static_cast<int64_t>(expected.size()));
      for (int i = 0; i < got.numel(); ++i) {
        EXPECT_NEAR(got[i].item<double>(), expected[i], tolerance * std::abs(expected[i]))
            << "element " << i << " after step " << step;
      }
    }
    EXPECT_EQ(done, 50);
  }
}

// --- what holds for each -----------------------------------------------------------------------

struct OfAdadelta {
  using Optimizer = Adadelta;
  using Options = AdadeltaOptions;
  using State = AdadeltaParamState;
  static constexpr const char* name = "Adadelta";
};
struct OfAdamax {
  using Optimizer = Adamax;
  using Options = AdamaxOptions;
  using State = AdamaxParamState;
  static constexpr const char* name = "Adamax";
};
struct OfRprop {
  using Optimizer = Rprop;
  using Options = RpropOptions;
  using State = RpropParamState;
  static constexpr const char* name = "Rprop";
};

template <typename Of>
class AnyOptimizer : public testing::Test {
 protected:
  using Optimizer = typename Of::Optimizer;
  using Options = typename Of::Options;
  using State = typename Of::State;

  static OptimizerParamGroup group(const at::Tensor& param, Options options) {
    return {{param}, std::make_unique<Options>(options)};
  }
};
using All = testing::Types<OfAdadelta, OfAdamax, OfRprop>;
TYPED_TEST_SUITE(AnyOptimizer, All);

TYPED_TEST(AnyOptimizer, LeavesParametersWithoutGradientAlone) {
  const Params params = start();
  const Params before = copy(params);
  typename TestFixture::Optimizer optimizer(params);
  params[0].mutable_grad() = gradients(1)[0];

  optimizer.step();

  EXPECT_FALSE(params[0].equal(before[0]));
  EXPECT_TRUE(params[1].equal(before[1]));
  EXPECT_EQ(find_state<typename TestFixture::State>(optimizer, params[0])->step(), 1);
  EXPECT_EQ(find_state(optimizer, params[1]), nullptr);
}

TYPED_TEST(AnyOptimizer, DoesNotChangeTheGradient) {
  Params params = start();
  typename TestFixture::Optimizer optimizer(params);

  run(optimizer, params, 1, 2);

  EXPECT_TRUE(params[0].grad().equal(gradients(2)[0]));
}

TYPED_TEST(AnyOptimizer, GroupsHaveTheirOwnOptions) {
  using Optimizer = typename TestFixture::Optimizer;
  using Options = typename TestFixture::Options;
  Params params = start(), apart = start();
  Optimizer optimizer({this->group(params[0], Options(0.5)), OptimizerParamGroup({params[1]})},
                      Options(0.125));
  Optimizer first(Params{apart[0]}, Options(0.5));
  Optimizer second(Params{apart[1]}, Options(0.125));

  run(optimizer, params, 1, 5);
  for (int step = 1; step <= 5; ++step) {
    for (size_t i = 0; i < 2; ++i) apart[i].mutable_grad() = gradients(step)[i];
    first.step();
    second.step();
  }

  EXPECT_TRUE(same(params, apart));
}

TYPED_TEST(AnyOptimizer, GoesOnAfterSaveAndLoad) {
  using Optimizer = typename TestFixture::Optimizer;
  Params params = start();
  Optimizer optimizer(params);
  run(optimizer, params, 1, 7);
  std::stringstream file;
  torch::serialize::OutputArchive out;
  optimizer.save(out);
  out.save_to(file);

  Params copies = copy(params);
  Optimizer other(copies);
  torch::serialize::InputArchive in;
  in.load_from(file);
  other.load(in);

  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(*find_state<typename TestFixture::State>(other, copies[i]),
              *find_state<typename TestFixture::State>(optimizer, params[i]));
  }
  run(optimizer, params, 8, 20);
  run(other, copies, 8, 20);
  EXPECT_TRUE(same(params, copies));
}

TYPED_TEST(AnyOptimizer, OptionsSurviveAnArchive) {
  using Options = typename TestFixture::Options;
  const Options options(0.75);
  std::stringstream file;
  torch::serialize::OutputArchive out;
  options.serialize(out);
  out.save_to(file);

  Options read;
  EXPECT_FALSE(read == options);
  torch::serialize::InputArchive in;
  in.load_from(file);
  read.serialize(in);

  EXPECT_TRUE(read == options);
}

TYPED_TEST(AnyOptimizer, RunsTheClosureWithGradientsOn) {
  Params params = start();
  typename TestFixture::Optimizer optimizer(params);
  at::NoGradGuard no_grad;

  const at::Tensor loss = optimizer.step([&] {
    at::Tensor sum = params[0].square().sum();
    sum.backward();
    return sum;
  });

  EXPECT_TRUE(loss.equal(start()[0].square().sum()));
  EXPECT_FALSE(params[0].equal(start()[0]));
  EXPECT_FALSE(optimizer.step().defined());
}

TYPED_TEST(AnyOptimizer, RefusesSparseGradients) {
  const at::Tensor param = start()[0];
  typename TestFixture::Optimizer optimizer(Params{param});
  param.mutable_grad() = gradients(1)[0].to_sparse();

  EXPECT_THAT([&] { optimizer.step(); },
              ThrowsMessage<c10::Error>(
                  AllOf(HasSubstr(std::string(TypeParam::name) + " takes no sparse gradients"),
                        HasSubstr("[3, 4]"))));

  EXPECT_TRUE(param.equal(start()[0]));
  EXPECT_EQ(find_state(optimizer, param), nullptr);
}

TYPED_TEST(AnyOptimizer, RefusesAnInvalidOptionWhereverItComesFrom) {
  using Optimizer = typename TestFixture::Optimizer;
  using Options = typename TestFixture::Options;
  const at::Tensor param = start()[0];
  const auto is_refused =
      ThrowsMessage<c10::Error>(HasSubstr(std::string(TypeParam::name) + ": lr must not be "
                                                                         "negative: -0.5"));

  EXPECT_THAT([&] { Optimizer(Params{param}, Options(-0.5)); }, is_refused);
  EXPECT_THAT([&] { Optimizer({this->group(param, Options(-0.5))}); }, is_refused);
  Optimizer added(Params{});
  added.add_param_group(this->group(param, Options(-0.5)));
  EXPECT_THAT([&] { added.step(); }, is_refused);
}

TYPED_TEST(AnyOptimizer, RefusesTheOptionsOfAnother) {
  const OptimizerParamGroup group(start(), std::make_unique<torch::optim::SGDOptions>(0.1));

  EXPECT_THAT([&] { typename TestFixture::Optimizer({group}); },
              ThrowsMessage<c10::Error>(HasSubstr("options of another optimizer")));
}

// --- options and weight decay ------------------------------------------------------------------

template <typename Optimizer, typename Options>
void expect_refused(Options options, const char* message) {
  EXPECT_THAT([&] { Optimizer(Params{}, options); }, ThrowsMessage<c10::Error>(HasSubstr(message)));
}

TEST(OptimizerOptions, OutOfRangeAreNamedWithTheirValue) {
  expect_refused<Adadelta>(AdadeltaOptions().rho(1.5), "rho must be from 0 to 1: 1.5");
  expect_refused<Adadelta>(AdadeltaOptions().eps(-1), "eps must not be negative: -1");
  expect_refused<Adadelta>(AdadeltaOptions().weight_decay(-2),
                           "weight_decay must not be negative: -2");
  expect_refused<Adadelta>(AdadeltaOptions(std::nan("")), "lr must not be negative: nan");
  expect_refused<Adamax>(AdamaxOptions().betas({1.0, 0.5}),
                         "first beta must be from 0 to below 1: 1");
  expect_refused<Adamax>(AdamaxOptions().betas({0.5, -0.25}),
                         "second beta must be from 0 to below 1: -0.25");
  expect_refused<Adamax>(AdamaxOptions().eps(-1), "eps must not be negative: -1");
  expect_refused<Adamax>(AdamaxOptions().weight_decay(-2), "weight_decay must not be negative: -2");
  expect_refused<Rprop>(RpropOptions().etas({0.5, 0.75}), "above 1: 0.5, 0.75");
  expect_refused<Rprop>(RpropOptions().etas({0, 1.5}), "above 1: 0, 1.5");
  expect_refused<Rprop>(RpropOptions().step_sizes({2, 1}), "largest size: 2, 1");
}

template <typename Of>
void expect_decay_is_part_of_the_gradient() {
  Params params = start(), by_hand = start();
  typename Of::Optimizer optimizer(params, typename Of::Options().weight_decay(0.5));
  typename Of::Optimizer plain(by_hand);

  for (int step = 1; step <= 5; ++step) {
    run(optimizer, params, step, step);
    for (size_t i = 0; i < 2; ++i) {
      by_hand[i].mutable_grad() = gradients(step)[i].add(by_hand[i].detach(), 0.5);
    }
    plain.step();
  }

  EXPECT_TRUE(same(params, by_hand));
}

TEST(WeightDecay, IsPartOfTheGradient) {
  expect_decay_is_part_of_the_gradient<OfAdadelta>();
  expect_decay_is_part_of_the_gradient<OfAdamax>();
}

// --- state -------------------------------------------------------------------------------------

TEST(ParamState, IsFoundWhereTorchPutIt) {
  Params params = start();
  torch::optim::SGD sgd(params, torch::optim::SGDOptions(0.1).momentum(0.5));
  run(sgd, params, 1, 1);

  const auto* state = find_state<torch::optim::SGDParamState>(sgd, params[1]);
  ASSERT_NE(state, nullptr);
  EXPECT_TRUE(state->momentum_buffer().equal(gradients(1)[1]));
  EXPECT_THROW(find_state<AdamaxParamState>(sgd, params[1]), c10::Error);
}

TEST(ParamState, MovesToAnotherOptimizerAndIsCleared) {
  Params params = start();
  Adamax one(params);
  run(one, params, 1, 3);
  Params copies = copy(params);
  Adamax other(copies);

  for (size_t i = 0; i < 2; ++i) {
    set_state(other, copies[i], find_state(one, params[i])->clone());
    // The clone shares the tensors.
    auto* state = find_state<AdamaxParamState>(other, copies[i]);
    state->exp_avg(state->exp_avg().clone()).exp_inf(state->exp_inf().clone());
  }
  run(one, params, 4, 6);
  run(other, copies, 4, 6);
  EXPECT_TRUE(same(params, copies));

  clear_state(other, copies[0]);
  EXPECT_EQ(find_state(other, copies[0]), nullptr);
  EXPECT_NE(find_state(other, copies[1]), nullptr);
}

}  // namespace
}  // namespace weft::optim

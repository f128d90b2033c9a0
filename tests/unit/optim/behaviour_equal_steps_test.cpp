// Behaviour 38: steps over three workers equal the same steps in one place.
// SPDX-License-Identifier: BSD-3-Clause
#include "optimizer_scene.h"

namespace weft::behaviour_optim {
namespace {

template <typename Opt>
using OptionsOf = typename optim::OptimizerTraits<Opt>::Options;

template <typename Opt>
struct OptionSets;
template <>
struct OptionSets<torch::optim::SGD> {
  static std::vector<torch::optim::SGDOptions> all() {
    using Options = torch::optim::SGDOptions;
    return {Options(0.05), Options(0.05).momentum(0.9).dampening(0.1),
            Options(0.02).momentum(0.9).nesterov(true).weight_decay(0.01)};
  }
};
template <typename Options>
std::vector<Options> adam_options() {
  return {Options(0.02), Options(0.01).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1),
          Options(0.05).amsgrad(true)};
}
template <>
struct OptionSets<torch::optim::Adam> {
  static auto all() { return adam_options<torch::optim::AdamOptions>(); }
};
template <>
struct OptionSets<torch::optim::AdamW> {
  static auto all() { return adam_options<torch::optim::AdamWOptions>(); }
};
template <>
struct OptionSets<torch::optim::Adagrad> {
  static std::vector<torch::optim::AdagradOptions> all() {
    using Options = torch::optim::AdagradOptions;
    return {Options(0.1), Options(0.1).lr_decay(0.01).weight_decay(0.01),
            Options(0.05).initial_accumulator_value(0.5).eps(1e-8)};
  }
};
template <>
struct OptionSets<torch::optim::RMSprop> {
  static std::vector<torch::optim::RMSpropOptions> all() {
    using Options = torch::optim::RMSpropOptions;
    return {Options(0.01), Options(0.01).alpha(0.9).momentum(0.9),
            Options(0.005).centered(true).weight_decay(0.01)};
  }
};
template <>
struct OptionSets<optim::Adadelta> {
  static std::vector<optim::AdadeltaOptions> all() {
    using Options = optim::AdadeltaOptions;
    return {Options(1.0), Options(0.5).rho(0.8), Options(1.0).eps(1e-5).weight_decay(0.01)};
  }
};
template <>
struct OptionSets<optim::Adamax> {
  static std::vector<optim::AdamaxOptions> all() {
    using Options = optim::AdamaxOptions;
    return {Options(0.02), Options(0.02).betas({0.8, 0.95}), Options(0.01).weight_decay(0.1)};
  }
};
template <>
struct OptionSets<optim::Rprop> {
  static std::vector<optim::RpropOptions> all() {
    using Options = optim::RpropOptions;
    return {Options(0.01), Options(0.02).etas({0.4, 1.3}), Options(0.01).step_sizes({1e-4, 0.1})};
  }
};

using All = testing::Types<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
                           torch::optim::Adagrad, torch::optim::RMSprop, optim::Adadelta,
                           optim::Adamax, optim::Rprop>;

template <typename Opt>
class Behaviour38_EqualSteps : public Behaviour {
 protected:
  void run(const OptionsOf<Opt>& options) {
    constexpr int64_t kSteps = 50;
    optim::DistributedOptimizer<Opt> distributed(group[0], references(), options);
    Opt here(local_tensors(), options);
    const Parameters before = make_parameters(1);

    for (int64_t i = 0; i < kSteps; ++i) {
      this->step(distributed, i);
      step_locally(here, i);
    }

    expect_equal();
    EXPECT_FALSE(at::equal(everyones_parameters().at("b").matrix, before.matrix));
    EXPECT_TRUE(at::equal(everyones_parameters().at("b").unused, before.unused));
    EXPECT_FALSE(everyones_parameters().at("b").matrix.grad().defined());
  }
};
TYPED_TEST_SUITE(Behaviour38_EqualSteps, All);

TYPED_TEST(Behaviour38_EqualSteps, WithTheFirstOptions) {
  this->run(OptionSets<TypeParam>::all().at(0));
}
TYPED_TEST(Behaviour38_EqualSteps, WithTheSecondOptions) {
  this->run(OptionSets<TypeParam>::all().at(1));
}
TYPED_TEST(Behaviour38_EqualSteps, WithTheThirdOptions) {
  this->run(OptionSets<TypeParam>::all().at(2));
}

// Half the steps, the state into a new optimizer, the other half.
TYPED_TEST(Behaviour38_EqualSteps, GoOnFromASavedState) {
  const OptionsOf<TypeParam> options = OptionSets<TypeParam>::all().at(1);
  TypeParam here(this->local_tensors(), options);
  optim::DistributedOptimizer<TypeParam> first(this->group[0], this->references(), options);
  for (int64_t i = 0; i < 5; ++i) {
    this->step(first, i);
    this->step_locally(here, i);
  }

  optim::DistributedOptimizer<TypeParam> second(this->group[0], this->references(),
                                                OptionsOf<TypeParam>(0.5));
  second.load_state(first.state());
  for (int64_t i = 5; i < 10; ++i) {
    this->step(second, i);
    this->step_locally(here, i);
  }

  EXPECT_EQ(second.lr(), options.get_lr());
  this->expect_equal();
}

}  // namespace
}  // namespace weft::behaviour_optim

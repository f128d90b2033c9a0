// Behaviour 38 besides equal steps: groups, rates, clipping, classes of the user's own.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include <torch/types.h>
// clip_grad.h does not include what it needs.
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/schedulers/step_lr.h>

#include "optim/owner_optimizer.h"
#include "optimizer_scene.h"
#include "support/scenario.h"
#include "wire/frame.h"

namespace weft::behaviour_optim {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;
using Applied = optim::OwnerOutcome::Applied;
using Behaviour38_Optimizer = Behaviour;

at::Tensor gradient_of_row(int64_t context) { return autograd::gradient(context, own_row()); }

TEST_F(Behaviour38_Optimizer, LeavesGradOfTheUserAlone) {
  at::Tensor& matrix = everyones_parameters().at("b").matrix;
  matrix.mutable_grad() = at::full({3, 4}, 7.f);
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));

  step(optimizer, 0);

  EXPECT_TRUE(at::equal(matrix.grad(), at::full({3, 4}, 7.f)));
}

TEST_F(Behaviour38_Optimizer, ReportsWhatEveryOwnerDid) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));

  step(optimizer, 0);

  const auto outcomes = optimizer.last_step();
  ASSERT_EQ(outcomes.size(), 3u);
  for (const auto& each : outcomes) {
    EXPECT_EQ(each.applied, Applied::kYes);
    EXPECT_EQ(each.parameters, 2u) << each.owner.name;  // the third has no gradient
  }
}

using References = std::vector<RRef<at::Tensor>>;

// Lists in a list, the second without options: g++ 12 broke down over it.
optim::DistributedOptimizer<SGD>::Groups two_groups(const References& first,
                                                    const References& second) {
  return {{first, SGDOptions(0.1).momentum(0.9)}, {second}};
}

TEST_F(Behaviour38_Optimizer, GroupsHaveOptionsOfTheirOwn) {
  auto all = references();
  optim::DistributedOptimizer<SGD> optimizer(
      group[0], two_groups({all[0], all[3], all[7]}, {all[1], all[4], all[6], all[2]}),
      SGDOptions(0.02));
  const auto tensors = local_tensors();
  SGD here({torch::optim::OptimizerParamGroup(
                {tensors[0], tensors[3], tensors[7]},
                std::make_unique<SGDOptions>(SGDOptions(0.1).momentum(0.9))),
            torch::optim::OptimizerParamGroup({tensors[1], tensors[4], tensors[6], tensors[2]})},
           SGDOptions(0.02));

  for (int64_t i = 0; i < 10; ++i) {
    step(optimizer, i);
    step_locally(here, i);
  }

  EXPECT_EQ(optimizer.lr(0), 0.1);
  EXPECT_EQ(optimizer.lr(1), 0.02);
  expect_equal();
}

TEST_F(Behaviour38_Optimizer, RatesAndOtherOptionsTakeEffectAtTheNextStep) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  SGD here(local_tensors(), SGDOptions(0.1));

  for (int64_t i = 0; i < 6; ++i) {
    optimizer.set_lr(0.1 / (1 + static_cast<double>(i)));
    optimizer.options().weight_decay(0.01 * static_cast<double>(i));
    auto& options = static_cast<SGDOptions&>(here.param_groups()[0].options());
    options.lr(0.1 / (1 + static_cast<double>(i))).weight_decay(0.01 * static_cast<double>(i));
    step(optimizer, i);
    step_locally(here, i);
  }

  expect_equal();
}

TEST_F(Behaviour38_Optimizer, SchedulersOfLibtorchWorkOnIt) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  SGD here(local_tensors(), SGDOptions(0.1));
  torch::optim::StepLR schedule(optimizer, 2, 0.5), schedule_here(here, 2, 0.5);

  for (int64_t i = 0; i < 6; ++i) {
    step(optimizer, i);
    step_locally(here, i);
    schedule.step();
    schedule_here.step();
  }

  EXPECT_LT(optimizer.lr(), 0.1);
  expect_equal();
}

TEST_F(Behaviour38_Optimizer, SchedulersOfWeftWorkOnIt) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  optim::CosineAnnealingLR schedule(optimizer, 4);

  for (int i = 0; i < 2; ++i) schedule.step();

  EXPECT_NEAR(optimizer.lr(), 0.05, 1e-12);
}

TEST_F(Behaviour38_Optimizer, ThePlaceOfItsOptionsIsNoOptimizer) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  torch::optim::Optimizer& options = optimizer;

  EXPECT_THAT([&] { options.step(); },
              fails_with(ErrorCode::kInvalidArgument, "call step(context)"));
}

TEST_F(Behaviour38_Optimizer, GradientsAreClippedOverAllWorkers) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  SGD here(local_tensors(), SGDOptions(0.1));
  for (const double kind : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    Context context(group[0]);
    pass(context, 1);
    here.zero_grad();
    pass_locally(1);

    const double norm = optimizer.clip_grad_norm(context, 0.5, kind);
    const double expected = torch::nn::utils::clip_grad_norm_(local_tensors(), 0.5, kind);
    optimizer.step(context);
    here.step();

    EXPECT_NEAR(norm, expected, 1e-5 * expected);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::allclose(everyones_parameters().at(a_name(i)).matrix,
                               local[static_cast<size_t>(i)].matrix));
    }
    EXPECT_NEAR(optimizer.clip_grad_norm(context, 1e9, kind), 0.5, 1e-4);
  }
}

at::Tensor own_times(double factor) { return (own_row() * factor).sum(); }
TEST_F(Behaviour38_Optimizer, GradientsThatAreNoNumbersAreNotScaled) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const double kind : {2.0, std::numeric_limits<double>::infinity()}) {
      Context context(group[0]);
      context.backward({group[0].sync<own_times>("a", bad) + group[0].sync<own_times>("b", 3.0)});

      EXPECT_FALSE(std::isfinite(optimizer.clip_grad_norm(context, 1, kind)));

      EXPECT_EQ(group[1].sync<gradient_of_row>("b", context.id())[0].item<float>(), 3);
    }
  }
}

TEST_F(Behaviour38_Optimizer, AScalingWhoseReplyIsLostIsDoneOnce) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  Context context(group[0]);
  pass(context, 1);
  const auto replies = std::make_shared<std::atomic<int>>(0);
  group.network().set_faults([replies](const transport::FrameInFlight& frame) {
    const bool reply = frame.kind == static_cast<uint8_t>(wire::FrameKind::kReply);
    const bool lost = reply && !frame.from_connector && replies->fetch_add(1) % 4 == 3;
    return transport::Fault{
        lost ? transport::Fault::Kind::kDropConnection : transport::Fault::Kind::kDeliver, {}, 0};
  });

  optimizer.clip_grad_norm(context, 0.5);
  group.network().set_faults(nullptr);

  EXPECT_NEAR(optimizer.clip_grad_norm(context, 1e9), 0.5, 1e-4);
}

TEST_F(Behaviour38_Optimizer, SmallGradientsAreNotScaled) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  Context context(group[0]);
  pass(context, 1);
  const at::Tensor before = context.gradient(everyones_parameters().at("a").matrix).clone();

  optimizer.clip_grad_norm(context, 1e6);

  EXPECT_TRUE(at::equal(context.gradient(everyones_parameters().at("a").matrix), before));
  EXPECT_THAT([&] { optimizer.clip_grad_norm(context, -1); },
              fails_with(ErrorCode::kInvalidArgument, "-1"));
}

TEST_F(Behaviour38_Optimizer, OneCallToEachOwnerMakesAStep) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  Context context(group[0]);
  pass(context, 0);
  const auto served_by_b = [this] {
    uint64_t served = 0;
    for (const auto& function : group[1].debug_info().functions) {
      if (function.name.find("OwnerOptimizer") != std::string::npos) served += function.served;
    }
    return served;
  };
  const uint64_t before = served_by_b();

  optimizer.step(context);

  // A call is counted when its answer is on its way.
  EXPECT_TRUE(test::eventually([&] { return served_by_b() > before; }));
  EXPECT_EQ(served_by_b(), before + 1);
}

TEST_F(Behaviour38_Optimizer, StepsOfSeveralTrainersComeOneAfterTheOther) {
  constexpr int kTrainers = 3, kSteps = 20;
  std::vector<std::unique_ptr<optim::DistributedOptimizer<SGD>>> optimizers;
  for (int i = 0; i < kTrainers; ++i) {
    std::vector<RRef<at::Tensor>> shared{remote<own_unused>(group[static_cast<size_t>(i)], 1)};
    optimizers.push_back(std::make_unique<optim::DistributedOptimizer<SGD>>(
        group[static_cast<size_t>(i)], shared, SGDOptions(1)));
  }
  const at::Tensor before = everyones_parameters().at("b").unused.detach().clone();

  std::vector<std::thread> trainers;
  for (int i = 0; i < kTrainers; ++i) {
    trainers.emplace_back([this, i, &optimizers] {
      Agent& agent = group[static_cast<size_t>(i)];
      for (int n = 0; n < kSteps; ++n) {
        Context context(agent);
        context.backward({agent.sync<own_unused>("b").sum()});
        optimizers[static_cast<size_t>(i)]->step(context);
      }
    });
  }
  for (auto& each : trainers) each.join();

  EXPECT_TRUE(at::allclose(everyones_parameters().at("b").unused, before - kTrainers * kSteps));
}

// --- a class of the user's own -----------------------------------------------------------------

struct HalvingOptions : torch::optim::OptimizerCloneableOptions<HalvingOptions> {
  HalvingOptions(double lr = 1) : lr_(lr) {}
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
  TORCH_ARG(double, lr);
};
struct HalvingState : torch::optim::OptimizerCloneableParamState<HalvingState> {
  TORCH_ARG(int64_t, times) = 0;
};
/// Halves what has a gradient.
class Halving : public torch::optim::Optimizer {
 public:
  Halving(std::vector<torch::optim::OptimizerParamGroup> groups, HalvingOptions defaults)
      : Optimizer(std::move(groups), std::make_unique<HalvingOptions>(defaults)) {}
  at::Tensor step(LossClosure) override {
    const c10::AutoGradMode off(false);
    for (auto& group : param_groups_) {
      for (auto& each : group.params()) {
        if (each.grad().defined()) each.mul_(0.5);
      }
    }
    return {};
  }
};

}  // namespace
}  // namespace weft::behaviour_optim

template <>
struct weft::optim::OptimizerTraits<weft::behaviour_optim::Halving> {
  using Options = weft::behaviour_optim::HalvingOptions;
  using State = weft::behaviour_optim::HalvingState;
  static void visit_options(auto& options, auto& visit) { visit("lr", options.lr()); }
  static void visit_state(auto& state, auto& visit) { visit("times", state.times()); }
};

namespace weft::behaviour_optim {
namespace {

TEST_F(Behaviour38_Optimizer, AClassOfTheUsersOwnWorksToo) {
  optim::DistributedOptimizer<Halving> optimizer(group[0], references(), HalvingOptions());
  const at::Tensor before = everyones_parameters().at("c").row.detach().clone();

  step(optimizer, 0);

  EXPECT_TRUE(at::equal(everyones_parameters().at("c").row, before / 2));
}

TEST_F(Behaviour38_Optimizer, AKindThatAProgramLacksIsNamed) {
  const RRef<optim::OwnerOptimizer> owner =
      remote<optim::OwnerOptimizer>(group[0], "b", optim::OwnerPlan{"mine::Optimizer", {}, {}});

  const auto complaint = owner.rpc_sync<&optim::OwnerOptimizer::complaint>();

  EXPECT_THAT(complaint.text, AllOf(HasSubstr("mine::Optimizer"), HasSubstr("torch::optim::Adam")));
}

}  // namespace
}  // namespace weft::behaviour_optim

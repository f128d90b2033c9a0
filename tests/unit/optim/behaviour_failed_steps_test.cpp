// Behaviour 38: what the network and mistakes do to a step.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

#include "optim/owner_optimizer.h"
#include "optimizer_scene.h"
#include "weft/current_call.h"
#include "wire/frame.h"

namespace weft::behaviour_optim {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using Applied = optim::OwnerOutcome::Applied;
using Behaviour38_FailedSteps = Behaviour;

// --- the network -------------------------------------------------------------------------------

/// Breaks the connection before the next reply of an accepting end.
class LostReply {
 public:
  explicit LostReply(test::LoopbackGroup& group) : lost_(std::make_shared<std::atomic<int>>(0)) {
    group.network().set_faults([lost = lost_](const transport::FrameInFlight& frame) {
      const bool reply = frame.kind == static_cast<uint8_t>(wire::FrameKind::kReply);
      if (reply && !frame.from_connector && lost->fetch_add(1) == 0) {
        return transport::Fault{transport::Fault::Kind::kDropConnection, {}, 0};
      }
      return transport::Fault{};
    });
  }
  bool happened() const { return *lost_ > 0; }

 private:
  std::shared_ptr<std::atomic<int>> lost_;
};

TEST_F(Behaviour38_FailedSteps, AStepWhoseReplyIsLostIsAppliedOnce) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1).momentum(0.9));
  SGD here(local_tensors(), SGDOptions(0.1).momentum(0.9));
  for (int64_t i = 0; i < 5; ++i) {
    Context context(group[0]);
    pass(context, i);
    const LostReply fault(group);
    optimizer.step(context);
    EXPECT_TRUE(fault.happened());
    group.network().set_faults(nullptr);
    step_locally(here, i);
  }

  expect_equal();
}

Record sgd_options() { return optim::detail::TypedKind<SGD>::get().write(SGDOptions(0.1)); }

/// The part of a distributed optimizer for b's matrix.
RRef<optim::OwnerOptimizer> optimizer_of_b(Agent& from) {
  return remote<optim::OwnerOptimizer>(
      from, "b",
      optim::OwnerPlan{
          "torch::optim::SGD", sgd_options(), {{sgd_options(), {remote<own_matrix>(from, "b")}}}});
}

TEST_F(Behaviour38_FailedSteps, AStepIsKnownByItsNumber) {
  Context context(group[0]);
  pass(context, 0);
  const RRef<optim::OwnerOptimizer> owner = optimizer_of_b(group[0]);
  const c10::AutoGradMode off(false);
  const std::vector<Record> options{sgd_options()};
  const auto send = [&](uint64_t number) {
    return owner.rpc_sync<&optim::OwnerOptimizer::step>(
        optim::StepOrder{number, context.id(), options});
  };

  EXPECT_EQ(send(2).applied, Applied::kYes);
  const at::Tensor once = everyones_parameters().at("b").matrix.clone();
  EXPECT_EQ(send(2).applied, Applied::kYes);
  EXPECT_EQ(send(1).applied, Applied::kNo);
  EXPECT_THAT(send(1).complaint.text, HasSubstr("step 1 came after step 2"));

  EXPECT_TRUE(at::equal(everyones_parameters().at("b").matrix, once));
}

struct LateStep {
  std::promise<void> began;
  std::promise<optim::StepResult> result;
};
std::shared_ptr<LateStep> late_step;

void step_when_given_up(RRef<optim::OwnerOptimizer> owner, optim::StepOrder order) {
  const auto late = late_step;  // the test does not wait for the end of this function
  late->began.set_value();
  while (!current_call::cancelled()) std::this_thread::yield();
  late->result.set_value(owner.local_value().step(order));
}

TEST_F(Behaviour38_FailedSteps, AStepWhoseCallerHasGivenUpChangesNothing) {
  Context context(group[0]);
  pass(context, 0);
  const RRef<optim::OwnerOptimizer> owner = optimizer_of_b(group[0]);
  const c10::AutoGradMode off(false);
  const optim::StepOrder order{1, context.id(), {sgd_options()}};
  const at::Tensor before = everyones_parameters().at("b").matrix.detach().clone();
  const auto late = late_step = std::make_shared<LateStep>();

  const auto call = group[0].async<step_when_given_up>("b", owner, order);
  late->began.get_future().wait();
  call.cancel();
  const optim::StepResult result = late->result.get_future().get();

  EXPECT_EQ(result.applied, Applied::kNo);
  EXPECT_THAT(result.complaint.text, HasSubstr("step 1 was given up by its caller"));
  EXPECT_TRUE(at::equal(everyones_parameters().at("b").matrix, before));

  // Sent again, it is applied.
  EXPECT_EQ(owner.rpc_sync<&optim::OwnerOptimizer::step>(order).applied, Applied::kYes);
  EXPECT_FALSE(at::equal(everyones_parameters().at("b").matrix, before));
}

/// Lets a worker answer once and then breaks every connection over which it is called.
void break_calls_after_an_answer(test::LoopbackGroup& group, size_t rank) {
  const auto answered = std::make_shared<bool>(false);
  group.network().set_faults([answered, address = group.address(rank)](
                                 const transport::FrameInFlight& frame) {
    const auto is = [&](wire::FrameKind kind) { return frame.kind == static_cast<uint8_t>(kind); };
    const bool breaks = *answered && is(wire::FrameKind::kCall) && frame.to == address;
    if (is(wire::FrameKind::kReply) && frame.from == address) *answered = true;
    return transport::Fault{
        breaks ? transport::Fault::Kind::kDropConnection : transport::Fault::Kind::kDeliver, {}, 0};
  });
}

at::Tensor gradient_of_matrix(int64_t context) { return autograd::gradient(context, own_matrix()); }
TEST_F(Behaviour38_FailedSteps, AScalingThatFailedAtOneOwnerIsCompletedAndNotRepeated) {
  const auto parameters = references();  // none is released, so c answers nothing but calls
  optim::DistributedOptimizer<SGD> optimizer(group[0], parameters, SGDOptions(0.1));
  Context context(group[0]);
  pass(context, 1);
  const at::Tensor before = group[0].sync<gradient_of_matrix>("b", context.id());
  break_calls_after_an_answer(group, 2);

  EXPECT_THAT([&] { optimizer.clip_grad_norm(context, 0.5); },
              Throws<Error>(Property(&Error::message, HasSubstr("; c: "))));
  group.network().set_faults(nullptr);
  const at::Tensor scaled = group[0].sync<gradient_of_matrix>("b", context.id());
  EXPECT_FALSE(at::equal(scaled, before));

  EXPECT_NEAR(optimizer.clip_grad_norm(context, 0.5), 0.5, 1e-4);
  const at::Tensor after = group[0].sync<gradient_of_matrix>("b", context.id());
  EXPECT_TRUE(at::allclose(after, scaled, 1e-4));
}

// --- steps that fail ---------------------------------------------------------------------------

/// Fails on the workers named, in the middle of a step or before it.
class Balking : public torch::optim::SGD {
 public:
  Balking(std::vector<torch::optim::OptimizerParamGroup> groups, SGDOptions defaults)
      : SGD(std::move(groups), std::move(defaults)) {}
  at::Tensor step(LossClosure closure) override {
    SGD::step(closure);
    for (const at::Tensor& each : param_groups_[0].params()) {
      if (!balks.empty() && each.is_same(everyones_parameters().at(balks).matrix)) {
        if (without_a_text) throw Error(ErrorCode::kLimitExceeded, "");
        throw 7;  // no std::exception
      }
    }
    return {};
  }
  static inline std::string balks;
  static inline bool without_a_text = false;
};

}  // namespace
}  // namespace weft::behaviour_optim
template <>
struct weft::optim::OptimizerTraits<weft::behaviour_optim::Balking>
    : weft::optim::OptimizerTraits<torch::optim::SGD> {};
namespace weft::behaviour_optim {
namespace {

TEST_F(Behaviour38_FailedSteps, AStepThatThrewIsNotAppliedAgain) {
  optim::DistributedOptimizer<Balking> optimizer(group[0], references(), SGDOptions(0.1));
  Context context(group[0]);
  pass(context, 0);
  Balking::balks = "b";

  EXPECT_THAT([&] { optimizer.step(context); },
              Throws<Error>(Property(&Error::message, HasSubstr("b (partly applied)"))));
  const at::Tensor once = everyones_parameters().at("b").matrix.detach().clone();
  Balking::balks = "";
  EXPECT_THROW(optimizer.step(context), Error);

  EXPECT_TRUE(at::equal(everyones_parameters().at("b").matrix, once));
}

TEST_F(Behaviour38_FailedSteps, AFailureWithoutATextIsOne) {
  optim::DistributedOptimizer<Balking> optimizer(group[0], references(), SGDOptions(0.1));
  Context context(group[0]);
  pass(context, 0);
  Balking::balks = "b";
  Balking::without_a_text = true;

  EXPECT_THAT([&] { optimizer.step(context); },
              fails_with(ErrorCode::kLimitExceeded, "b (partly applied): kLimitExceeded"));
  EXPECT_FALSE(optimizer.last_step().at(1).failure.empty());

  Balking::balks = "";
  Balking::without_a_text = false;
}

TEST_F(Behaviour38_FailedSteps, AFailedStepThatOthersCameAfterCannotBeCompleted) {
  optim::DistributedOptimizer<Balking> optimizer(group[0], references(), SGDOptions(0.1));
  Balking::balks = "b";
  int64_t failed_id = 0;
  {
    Context failed(group[0]);
    pass(failed, 0);
    failed_id = failed.id();
    EXPECT_THROW(optimizer.step(failed), Error);
    Balking::balks = "";
    // Of somebody else's context meanwhile, on another thread.
    std::thread([&] { step(optimizer, 1); }).join();
    const at::Tensor now = everyones_parameters().at("a").matrix.detach().clone();

    EXPECT_THAT([&] { optimizer.step(failed); },
                fails_with(ErrorCode::kInvalidArgument, std::to_string(failed_id)));
    EXPECT_TRUE(at::equal(everyones_parameters().at("a").matrix, now));
  }
}

TEST_F(Behaviour38_FailedSteps, AfterALoadAFailedStepIsForgotten) {
  optim::DistributedOptimizer<Balking> optimizer(group[0], references(), SGDOptions(0.1));
  const auto state = optimizer.state();
  Context context(group[0]);
  pass(context, 0);
  Balking::balks = "b";
  EXPECT_THROW(optimizer.step(context), Error);
  Balking::balks = "";
  const at::Tensor before = everyones_parameters().at("a").matrix.detach().clone();

  optimizer.load_state(state);
  optimizer.step(context);

  EXPECT_FALSE(at::equal(everyones_parameters().at("a").matrix, before));
}

TEST_F(Behaviour38_FailedSteps, AnOwnerThatIsGoneIsNamed) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  Context context(group[0]);
  pass(context, 0);
  group[2].shutdown_now();

  EXPECT_THAT([&] { optimizer.step(context); },
              Throws<Error>(Property(&Error::message,
                                     AllOf(HasSubstr("applied by a, b"), HasSubstr("; c (")))));
  EXPECT_EQ(optimizer.last_step().at(0).applied, Applied::kYes);
  EXPECT_NE(optimizer.last_step().at(2).applied, Applied::kYes);

  // Again: whoever has applied it does not.
  const at::Tensor once = everyones_parameters().at("b").matrix.clone();
  EXPECT_THROW(optimizer.step(context), Error);
  EXPECT_TRUE(at::equal(everyones_parameters().at("b").matrix, once));
}

// --- mistakes ----------------------------------------------------------------------------------

TEST_F(Behaviour38_FailedSteps, MistakesInItsConstructionAreNamed) {
  const auto all = references();
  const auto make = [&](std::vector<RRef<at::Tensor>> parameters, const SGDOptions& options) {
    return [this, parameters, options] {
      optim::DistributedOptimizer<SGD> optimizer(group[0], parameters, options);
    };
  };

  EXPECT_THAT(make({}, SGDOptions(0.1)), fails_with(ErrorCode::kInvalidArgument, "no parameters"));
  EXPECT_THAT(make({RRef<at::Tensor>()}, SGDOptions(0.1)),
              fails_with(ErrorCode::kInvalidArgument, "empty RRef"));
  EXPECT_THAT(make({all[3], all[4], all[3]}, SGDOptions(0.1)),
              fails_with(ErrorCode::kInvalidArgument, "b: a parameter of sizes [3, 4] is given "));
  EXPECT_THAT(make(all, SGDOptions(-1)), fails_with(ErrorCode::kInvalidArgument, "-1"));
}

at::Tensor no_leaf() { return own_matrix() * 2; }
TEST_F(Behaviour38_FailedSteps, EveryOwnerThatCannotMakeItIsNamed) {
  const std::vector<RRef<at::Tensor>> bad{remote<no_leaf>(group[0], "b"),
                                          remote<no_leaf>(group[0], "c")};

  EXPECT_THAT([&] { optim::DistributedOptimizer<SGD>(group[0], bad, SGDOptions(0.1)); },
              Throws<Error>(Property(
                  &Error::message, AllOf(HasSubstr("b: "), HasSubstr("c: "), HasSubstr("leaf")))));
}

TEST_F(Behaviour38_FailedSteps, SparseGradientsAreAppliedOrRefusedBeforeAnythingChanges) {
  optim::DistributedOptimizer<SGD> takes(group[0], references(), SGDOptions(0.5));
  optim::DistributedOptimizer<Adam> refuses(group[0], references(), AdamOptions(0.5));
  const at::Tensor before = everyones_parameters().at("b").matrix.detach().clone();
  Context context(group[0]);
  context.backward({group[0].sync<own_sparse_term>("b").sum() + group[0].sync<own_row>("b").sum()});
  const at::Tensor row = everyones_parameters().at("b").row.detach().clone();

  EXPECT_THAT([&] { refuses.step(context); },
              Throws<Error>(Property(&Error::message, HasSubstr("b"))));
  EXPECT_TRUE(at::equal(everyones_parameters().at("b").row, row));
  takes.step(context);

  EXPECT_FALSE(at::equal(everyones_parameters().at("b").matrix, before));
}

TEST_F(Behaviour38_FailedSteps, SparseGradientsWithWeightDecayChangeNothing) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(),
                                             SGDOptions(0.5).weight_decay(0.1));
  Context context(group[0]);
  context.backward({group[0].sync<own_sparse_term>("b").sum() + group[0].sync<own_row>("b").sum()});
  const at::Tensor row = everyones_parameters().at("b").row.detach().clone();

  EXPECT_THAT([&] { optimizer.step(context); },
              fails_with(ErrorCode::kInvalidArgument, "b (not applied)"));
  EXPECT_TRUE(at::equal(everyones_parameters().at("b").row, row));

  optimizer.options().weight_decay(0);
  optimizer.step(context);
  EXPECT_FALSE(at::equal(everyones_parameters().at("b").row, row));
}

at::Tensor own_broken_term() {
  at::Tensor y = own_matrix() * 2;
  y.register_hook([](const at::Tensor&) { throw std::out_of_range("no gradient today"); });
  return y.sum();
}
TEST_F(Behaviour38_FailedSteps, AContextThatIsOfNoUseIsRefusedBeforeAnythingIsSent) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));

  EXPECT_THAT([&] { optimizer.step(12345); }, fails_with(ErrorCode::kInvalidArgument, "12345"));
  {
    Context context(group[0]);
    EXPECT_THAT([&] { optimizer.step(context); },
                fails_with(ErrorCode::kInvalidArgument, "no backward()"));
  }
  Context context(group[0]);
  EXPECT_THROW(context.backward({group[0].sync<own_broken_term>("b")}), Error);
  EXPECT_THAT([&] { optimizer.step(context); }, fails_with(ErrorCode::kContextAborted));
  EXPECT_THAT([&] { optimizer.clip_grad_norm(context, 1); },
              fails_with(ErrorCode::kContextAborted));
}

TEST_F(Behaviour38_FailedSteps, OptionsThatMakeNoSenseAreRefusedBeforeAnythingIsSent) {
  optim::DistributedOptimizer<optim::Adamax> optimizer(group[0], references(),
                                                       optim::AdamaxOptions(0.1));
  Context context(group[0]);
  pass(context, 0);
  const at::Tensor before = everyones_parameters().at("b").matrix.detach().clone();

  EXPECT_THAT([&] { optimizer.set_lr(-1); }, fails_with(ErrorCode::kInvalidArgument, "-1"));
  EXPECT_THAT([&] { optimizer.set_lr(3, 1); }, fails_with(ErrorCode::kInvalidArgument, "group 3"));
  EXPECT_THAT([&] { optimizer.options(3); }, fails_with(ErrorCode::kInvalidArgument, "group 3"));
  optimizer.options().lr(-3);
  EXPECT_THAT([&] { optimizer.step(context); }, fails_with(ErrorCode::kInvalidArgument, "-3"));
  optimizer.param_groups()[0].set_options(std::make_unique<SGDOptions>(0.1));
  EXPECT_THAT([&] { optimizer.step(context); },
              fails_with(ErrorCode::kInvalidArgument, "another class"));
  EXPECT_TRUE(at::equal(everyones_parameters().at("b").matrix, before));

  optimizer.param_groups()[0].set_options(std::make_unique<optim::AdamaxOptions>(0.1));
  optimizer.step(context);
  EXPECT_FALSE(at::equal(everyones_parameters().at("b").matrix, before));
}

TEST_F(Behaviour38_FailedSteps, AfterShutdownItSaysSo) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1));
  group.shut_down();

  EXPECT_THAT([&] { optimizer.step(1); }, fails_with(ErrorCode::kShuttingDown));
}

TEST_F(Behaviour38_FailedSteps, AStateThatOneOwnerRefusesChangesNobody) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.1).momentum(0.9));
  step(optimizer, 0);
  auto state = optimizer.state();
  const auto first = [](const optim::OptimizerState& of) {
    return std::get<at::Tensor>(of.groups[0].parameters[0].state->at("momentum_buffer")).clone();
  };
  const at::Tensor before = first(state);
  (*state.groups[0].parameters[0].state)["momentum_buffer"] = at::zeros({3, 4});
  (*state.groups[0].parameters[7].state)["momentum_buffer"] = at::zeros({7});

  EXPECT_THAT([&] { optimizer.load_state(state); },
              fails_with(ErrorCode::kInvalidArgument,
                         "c: the state of torch::optim::SGD has a "
                         "momentum_buffer of sizes [7]"));
  EXPECT_TRUE(at::equal(first(optimizer.state()), before));

  state = optimizer.state();
  state.groups[0].options["lr"] = -2.0;
  EXPECT_THAT([&] { optimizer.load_state(state); }, fails_with(ErrorCode::kInvalidArgument, "-2"));
}

at::Tensor step_here(RRef<at::Tensor> parameter) {
  optim::DistributedOptimizer<SGD> optimizer({parameter}, SGDOptions(1));
  optimizer.step(*autograd::current_context_id());
  return at::ones({1});
}
TEST_F(Behaviour38_FailedSteps, AWorkerThatDidNotMakeTheContextMayStep) {
  const at::Tensor before = everyones_parameters().at("b").row.detach().clone();
  const auto row = remote<own_row>(group[0], "b");
  Context context(group[0]);
  context.backward({group[0].sync<own_row>("b").sum()});

  group[0].sync<step_here>("b", row);

  EXPECT_TRUE(at::allclose(everyones_parameters().at("b").row, before - 1));
}

TEST_F(Behaviour38_FailedSteps, TheStateOfAnotherOneIsRefused) {
  const auto all = references();
  optim::DistributedOptimizer<SGD> sgd(group[0], all, SGDOptions(0.1).momentum(0.9));
  optim::DistributedOptimizer<Adam> adam(group[0], all, AdamOptions(0.1));
  optim::DistributedOptimizer<SGD> fewer(group[0], {all[0], all[1]}, SGDOptions(0.1));
  optim::DistributedOptimizer<SGD> others(group[0], {all[1], all[0]}, SGDOptions(0.1));
  step(sgd, 0);
  const auto state = sgd.state();

  EXPECT_THAT([&] { adam.load_state(state); },
              fails_with(ErrorCode::kInvalidArgument, "torch::optim::SGD given to"));
  EXPECT_THAT([&] { fewer.load_state(state); }, fails_with(ErrorCode::kInvalidArgument, "9"));
  EXPECT_THAT([&] { others.load_state(fewer.state()); },
              fails_with(ErrorCode::kInvalidArgument, "[3, 4]"));
}

TEST_F(Behaviour38_FailedSteps, CanBeMovedAndOutlivesNothing) {
  optim::DistributedOptimizer<SGD> first(group[0], references(), SGDOptions(0.1));
  torch::optim::Optimizer& options = first;
  optim::DistributedOptimizer<SGD> second(std::move(first));

  step(second, 0);

  EXPECT_EQ(&static_cast<torch::optim::Optimizer&>(second), &options);
  EXPECT_EQ(second.owners().size(), 3u);
}

}  // namespace
}  // namespace weft::behaviour_optim

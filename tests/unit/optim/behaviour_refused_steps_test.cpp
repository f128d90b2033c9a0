// A step that some owner cannot apply is refused before any owner changes anything.
// SPDX-License-Identifier: BSD-3-Clause
#include <functional>
#include <thread>

#include "optimizer_scene.h"
#include "support/scenario.h"
#include "wire/frame.h"

namespace weft::behaviour_optim {
namespace {

using Applied = optim::OwnerOutcome::Applied;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

at::Tensor step_adam_here(std::vector<RRef<at::Tensor>> parameters) {
  optim::DistributedOptimizer<Adam> optimizer(parameters, AdamOptions(0.5));
  optimizer.step(*autograd::current_context_id());
  return at::ones({1});
}

class RefusedSteps : public Behaviour {
 protected:
  /// The matrix of worker `rank` gets a sparse gradient, all other parameters dense ones.
  void pass_with_sparse(Context& context, int rank) {
    at::Tensor loss = group[0].sync<own_sparse_term>(rank).sum();
    for (int i = 0; i < 3; ++i) {
      loss = loss + (i == rank ? group[0].sync<own_row>(i).sum() : group[0].sync<own_term>(i, 0));
    }
    context.backward({loss});
  }
  static std::vector<at::Tensor> everything() {
    std::vector<at::Tensor> all;
    for (const auto& [name, parameters] : everyones_parameters()) {
      for (const at::Tensor& each : parameters.all()) all.push_back(each.detach().clone());
    }
    return all;
  }
  static void expect_unchanged(const std::vector<at::Tensor>& before) {
    const std::vector<at::Tensor> now = everything();
    for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(at::equal(now[i], before[i])) << i;
  }
  /// How often worker `rank` was asked whether it can apply a step. (A worker counts a call a
  /// moment after it has sent the reply.)
  bool was_asked(size_t rank, uint64_t times) {
    return test::eventually([&] { return times_asked(rank) == times; });
  }
  uint64_t times_asked(size_t rank) {
    uint64_t times = 0;
    for (const FunctionStats& each : group[rank].debug_info().functions) {
      if (each.name.find("check_step") != std::string::npos) times += each.served;
    }
    return times;
  }
  /// A step that worker c does not hear of: the connection breaks before every call to it.
  template <typename Opt>
  void step_without_c(optim::DistributedOptimizer<Opt>& optimizer, const Context& context) {
    group.network().set_faults([c = group.address(2)](const transport::FrameInFlight& frame) {
      const bool call = frame.kind == static_cast<uint8_t>(wire::FrameKind::kCall);
      return call && frame.from_connector && frame.to == c
                 ? transport::Fault{transport::Fault::Kind::kDropConnection, {}, 0}
                 : transport::Fault{};
    });
    EXPECT_THROW(optimizer.step(context), Error);
    group.network().set_faults(nullptr);
    EXPECT_EQ(optimizer.last_step().at(0).applied, Applied::kYes);
    EXPECT_NE(optimizer.last_step().at(2).applied, Applied::kYes);
  }
  /// The connections come back one by one.
  static void complete(const std::function<void()>& step) {
    for (int i = 0; i < 100; ++i) {
      try {
        return step();
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInvalidArgument) throw;
      }
    }
    FAIL() << "the step could not be completed";
  }
};

TEST_F(RefusedSteps, ASparseGradientOnOneOwnerChangesNobody) {
  optim::DistributedOptimizer<Adam> optimizer(group[0], references(), AdamOptions(0.5));
  for (int rank = 0; rank < 3; ++rank) {
    Context context(group[0]);
    pass_with_sparse(context, rank);
    const auto before = everything();

    EXPECT_THAT([&] { optimizer.step(context); },
                Throws<Error>(AllOf(
                    Property(&Error::code, ErrorCode::kInvalidArgument),
                    Property(&Error::may_have_run, false),
                    Property(&Error::message,
                             AllOf(HasSubstr("applied by nobody; " + a_name(rank) +
                                             " (not applied): torch::optim::Adam takes no sparse"),
                                   HasSubstr("[3, 4]"))))));

    expect_unchanged(before);
    for (const auto& outcome : optimizer.last_step()) EXPECT_EQ(outcome.applied, Applied::kNo);
  }
  step(optimizer, 0);  // of dense gradients, it goes on
  EXPECT_EQ(optimizer.last_step().at(2).applied, Applied::kYes);
}

TEST_F(RefusedSteps, WithOtherOptionsARefusedStepIsAppliedEverywhere) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(),
                                             SGDOptions(0.5).weight_decay(0.1));
  Context context(group[0]);
  pass_with_sparse(context, 1);
  const auto before = everything();
  EXPECT_THAT([&] { optimizer.step(context); }, fails_with(ErrorCode::kInvalidArgument, "b ("));
  expect_unchanged(before);

  optimizer.options().weight_decay(0);
  optimizer.step(context);

  for (const auto& outcome : optimizer.last_step()) EXPECT_EQ(outcome.applied, Applied::kYes);
  EXPECT_FALSE(at::equal(everyones_parameters().at("a").row, before[1]));
  EXPECT_FALSE(at::equal(everyones_parameters().at("b").row, before[4]));
}

// The worker that steps does not know who has sparse gradients: it was not told by the pass.
TEST_F(RefusedSteps, AWorkerThatDidNotMakeTheContextIsRefusedToo) {
  const auto all = references();
  Context context(group[0]);
  pass_with_sparse(context, 2);
  const auto before = everything();

  EXPECT_THAT([&] { group[0].sync<step_adam_here>("b", all); },
              Throws<std::exception>(
                  Property(&std::exception::what, HasSubstr("takes no sparse gradients"))));

  expect_unchanged(before);
}

TEST_F(RefusedSteps, OwnersAreAskedFirstOnlyWhereOneMayRefuse) {
  const auto all = references();
  optim::DistributedOptimizer<Adam> adam(group[0], all, AdamOptions(0.1));
  optim::DistributedOptimizer<SGD> sgd(group[0], all, SGDOptions(0.1));
  optim::DistributedOptimizer<Adam> without_b(group[0], {all[0], all[6]}, AdamOptions(0.1));

  step(adam, 0);  // of dense gradients
  Context context(group[0]);
  pass_with_sparse(context, 1);
  sgd.step(context);        // takes sparse ones
  without_b.step(context);  // has no parameter where a sparse one is
  EXPECT_EQ(times_asked(1) + times_asked(2), 0u);

  EXPECT_THROW(adam.step(context), Error);
  EXPECT_TRUE(was_asked(1, 1));
  EXPECT_TRUE(was_asked(2, 1));
}

// A dense gradient and a sparse one add up to a dense one.
TEST_F(RefusedSteps, AGradientThatBecameDenseIsApplied) {
  optim::DistributedOptimizer<Adam> optimizer(group[0], references(), AdamOptions(0.5));
  Context context(group[0]);
  pass_with_sparse(context, 1);
  EXPECT_THROW(optimizer.step(context), Error);
  pass(context, 0);
  const auto before = everything();

  optimizer.step(context);

  EXPECT_TRUE(was_asked(1, 1));
  EXPECT_FALSE(at::equal(everyones_parameters().at("b").matrix, before[3]));
}

TEST_F(RefusedSteps, ARefusedStepLeavesAnUnfinishedOneToBeCompleted) {
  optim::DistributedOptimizer<Adam> optimizer(group[0], references(), AdamOptions(0.5));
  Context unfinished(group[0]);
  pass(unfinished, 0);
  const auto before = everything();
  step_without_c(optimizer, unfinished);
  const auto half = everything();

  std::thread([&] {
    Context refused(group[0]);
    complete([&] { pass_with_sparse(refused, 1); });
    EXPECT_THROW(optimizer.step(refused), Error);
  }).join();
  expect_unchanged(half);
  complete([&] { optimizer.step(unfinished); });

  EXPECT_TRUE(at::equal(everyones_parameters().at("a").matrix, half[0]));
  EXPECT_FALSE(at::equal(everyones_parameters().at("c").matrix, before[6]));
}

// The owner took the sparse gradient with the options of then; those of now are for the others.
TEST_F(RefusedSteps, AnOwnerThatHasAppliedAStepDoesNotRefuseItsCompletion) {
  optim::DistributedOptimizer<SGD> optimizer(group[0], references(), SGDOptions(0.5));
  Context context(group[0]);
  pass_with_sparse(context, 1);
  step_without_c(optimizer, context);
  const auto half = everything();

  optimizer.options().weight_decay(0.1);
  complete([&] { optimizer.step(context); });

  EXPECT_TRUE(at::equal(everyones_parameters().at("b").matrix, half[3]));
  EXPECT_FALSE(at::equal(everyones_parameters().at("c").matrix, half[6]));
}

}  // namespace
}  // namespace weft::behaviour_optim

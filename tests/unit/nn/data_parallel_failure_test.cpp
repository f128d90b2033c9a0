// Behaviour 40: what members do wrong, and what becomes of the others.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <stdexcept>

#include "collective/process_group_state.h"
#include "data_parallel_scene.h"
#include "nn/replicas.h"
#include "nn/wait_for_all.h"

namespace weft::data_parallel {
namespace {

using torch::nn::LinearImpl;
using torch::nn::LinearOptions;
using Net = DistributedDataParallel<NetImpl>;
using Layer = DistributedDataParallel<LinearImpl>;
using DataParallelFailure = Scene;
using Clock = std::chrono::steady_clock;

const DataParallelOptions kSmallBuckets{.first_bucket_bytes = 16, .bucket_bytes = 64};

// --- modules -----------------------------------------------------------------------------------

TEST_F(DataParallelFailure, MembersThatBringDifferentModulesAreTold) {
  struct Case {
    std::function<std::shared_ptr<LinearImpl>()> other;
    std::string named;
  };
  const auto changed = [](const std::function<void(LinearImpl&)>& change) {
    return [change] {
      auto module = std::make_shared<LinearImpl>(6, 3);
      change(*module);
      return module;
    };
  };
  const std::vector<Case> cases{
      {[] { return std::make_shared<LinearImpl>(6, 4); }, "weight"},
      {[] { return std::make_shared<LinearImpl>(LinearOptions(6, 3).bias(false)); }, "bias"},
      {changed([](LinearImpl& it) { it.to(at::kDouble); }), "weight"},
      {changed([](LinearImpl& it) { it.bias.set_requires_grad(false); }), "bias"},
      {changed([](LinearImpl& it) { it.register_parameter("more", at::ones({2})); }), "more"},
      {changed([](LinearImpl& it) { it.register_buffer("extra", at::ones({2})); }), "extra"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const int64_t odd : {0, 1}) {
      const auto begin = Clock::now();
      const auto ends = outcomes(2, [&](const Member& member) {
        Layer(member.rank == odd ? cases[i].other() : std::make_shared<LinearImpl>(6, 3),
              member.group);
      });

      EXPECT_LT(Clock::now() - begin, kSoon);
      for (const auto& end : ends) {
        const auto error = error_of(end);
        ASSERT_TRUE(error) << "no error in case " << i;
        EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument) << i;
        EXPECT_THAT(error->message(), HasSubstr(cases[i].named)) << i;
      }
    }
  }
}

// The devices themselves may differ, but parameters that share one here must share one there.
TEST_F(DataParallelFailure, ParametersMustBeSpreadOverDevicesInTheSameWay) {
  const auto check = [](const Member& member, const std::vector<at::Device>& devices) {
    std::vector<nn::NamedTensor> tensors;
    for (const at::Device device : devices) {
      at::Tensor tensor = at::empty({2}, device);
      tensors.emplace_back(std::to_string(tensors.size()), tensor.set_requires_grad(true));
    }
    const auto group = member.group.group();
    nn::check_same(group->channel(), group->members(), tensors, at::kCPU);
  };

  on_members(2, [&](const Member& member) {
    const bool odd = member.rank == 1;
    check(member, odd ? std::vector<at::Device>{at::kMeta, at::kCPU, at::kMeta}
                      : std::vector<at::Device>{at::kCPU, at::kMeta, at::kCPU});
  });
  for (const auto& end : outcomes(2, [&](const Member& member) {
         check(member, {at::kCPU, at::kMeta, member.rank == 1 ? at::kMeta : at::kCPU});
       })) {
    const auto error = error_of(end);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->message(), HasSubstr("2 of Float [2], strides [1], on device 2 of"));
  }
}

struct EmptyImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TEST_F(DataParallelFailure, AModuleMustBeThereAndHaveParameters) {
  for (const auto& end : outcomes(
           2, [](const Member& member) { Layer(std::shared_ptr<LinearImpl>(), member.group); })) {
    const auto error = error_of(end);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  }
  for (const auto& end : outcomes(2, [](const Member& member) {
         DistributedDataParallel<EmptyImpl>(std::make_shared<EmptyImpl>(), member.group);
       })) {
    const auto error = error_of(end);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
  }
}

TEST_F(DataParallelFailure, ASparseParameterThatDoesNotExistIsAMistake) {
  for (const auto& end : outcomes(2, [](const Member& member) {
         Net(std::make_shared<NetImpl>(), member.group, {.sparse_parameters = {"third.weight"}});
       })) {
    const auto error = error_of(end);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->message(), HasSubstr("third.weight"));
  }
}

// An operation that has not ended may still read or write the tensors of the caller.
TEST(WaitForAll, WaitsForAllAlsoIfOneFails) {
  Promise<int> first, second, last;
  first.set_error(Error(ErrorCode::kTimeout, "the first"));
  second.set_error(Error(ErrorCode::kPeerLost, "the second"));
  std::atomic<bool> is_over{false};
  const std::vector<Future<int>> all{first.future(), second.future(), last.future()};
  std::thread ends_last([&] {
    is_over = true;
    last.set_value(3);
  });

  EXPECT_THAT([&] { nn::wait_for_all(all); },
              Throws<Error>(Property(&Error::code, ErrorCode::kTimeout)));

  EXPECT_TRUE(is_over);
  ends_last.join();
}

// --- passes ------------------------------------------------------------------------------------

template <typename Loss>
void pass(const Member& member, Way way, const Loss& loss) {
  if (way == Way::kPlain) {
    loss().backward();
  } else {
    Context context(member.agent);
    context.backward({loss()});
  }
}
class DataParallelFailureInEveryWay : public Scene, public testing::WithParamInterface<Way> {};
INSTANTIATE_TEST_SUITE_P(, DataParallelFailureInEveryWay,
                         testing::Values(Way::kPlain, Way::kContext), [](const auto& info) {
                           return info.param == Way::kPlain ? "Plain" : "Context";
                         });

struct BranchImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, bool all) {
    const at::Tensor y = trunk(x);
    return all ? branch(y) : y;
  }
  torch::nn::Linear trunk{register_module("trunk", torch::nn::Linear(6, 3))};
  torch::nn::Linear branch{register_module("branch", torch::nn::Linear(3, 3))};
};
using Branch = DistributedDataParallel<BranchImpl>;

TEST_P(DataParallelFailureInEveryWay, AParameterThatIsLeftOutIsNamed) {
  // By everybody; by one of them, who is told which.
  for (const bool other_uses_it : {false, true}) {
    const auto begin = Clock::now();
    const auto ends = outcomes(2, [&](const Member& member) {
      Branch net(std::make_shared<BranchImpl>(), member.group, kSmallBuckets);
      for (int64_t i = 0; i < 2; ++i) {
        pass(member, GetParam(), [&] {
          return net.forward(input(member.rank, i), member.rank == 1 && other_uses_it).sum();
        });
      }
    });

    EXPECT_LT(Clock::now() - begin, kSoon);
    ASSERT_TRUE(error_of(ends[0]));
    EXPECT_THAT(error_of(ends[0])->message(), HasSubstr("branch.weight"));
    ASSERT_TRUE(error_of(ends[1]));
    if (!other_uses_it) {
      EXPECT_THAT(error_of(ends[1])->message(), HasSubstr("branch.weight"));
    }
  }
}

enum class Break { kNever, kAtOnce, kInTheMiddle };
/// Fails in backward: before there is a gradient, or when those of the second layer are under way.
struct BreakingImpl : NetImpl {
  at::Tensor forward(const at::Tensor& x, Break when) {
    const auto breaks = [](const at::Tensor& tensor) {
      tensor.register_hook([](const at::Tensor&) { throw std::out_of_range("no gradient today"); });
    };
    const at::Tensor hidden = first(x).tanh();
    if (when == Break::kInTheMiddle) breaks(hidden);
    const at::Tensor result = second(hidden);
    if (when == Break::kAtOnce) breaks(result);
    return result;
  }
};
using Breaking = DistributedDataParallel<BreakingImpl>;

class DataParallelFailingPass : public Scene, public testing::WithParamInterface<Way> {};
INSTANTIATE_TEST_SUITE_P(, DataParallelFailingPass, testing::Values(Way::kPlain, Way::kContext));

// It has sent nothing yet, and the others wait for it.
TEST_P(DataParallelFailingPass, ThatHasNotBegunMayBeTriedAgain) {
  std::vector<Tensors> got(3);
  on_members(3, [&](const Member& member) {
    auto module = std::make_shared<BreakingImpl>();
    Breaking net(module, member.group, kSmallBuckets);
    const auto step = [&](Break breaks) {
      pass(member, GetParam(), [&] { return net.forward(input(member.rank, 0), breaks).sum(); });
    };
    step(Break::kNever);
    if (member.rank == 1) {
      EXPECT_ANY_THROW(step(Break::kAtOnce));
    }
    step(Break::kNever);
    step(Break::kNever);
    got[static_cast<size_t>(member.rank)] = grads(*module);
  });
  expect_alike(got);
}

// Whoever fails need not do anything with the module afterwards, nor end it.
TEST_P(DataParallelFailingPass, OfOneMemberEndsItForTheOthers) {
  std::vector<std::promise<void>> done(3);
  std::vector<std::string> later(3);
  std::vector<Clock::duration> took(3);
  const auto ends = outcomes(3, [&](const Member& member) {
    const auto rank = static_cast<size_t>(member.rank);
    Breaking net(std::make_shared<BreakingImpl>(), member.group, kSmallBuckets);
    const auto step = [&](Break breaks) {
      pass(member, GetParam(), [&] { return net.forward(input(member.rank, 0), breaks).sum(); });
    };
    step(Break::kNever);
    // All have finished it: a member that fails ends what the others have not, also of the pass
    // before.
    member.group.barrier();
    const auto begin = Clock::now();
    try {
      step(rank == 1 ? Break::kInTheMiddle : Break::kNever);
    } catch (...) {
      took[rank] = Clock::now() - begin;
      done[rank].set_value();
      if (rank == 1) {
        for (const size_t other : {0, 2}) done[other].get_future().wait_for(2 * kGroupTimeout);
      }
      try {
        step(Break::kNever);
      } catch (const Error& error) {
        later[rank] = error.message();
      }
      throw;
    }
    done[rank].set_value();
  });

  for (const auto& each : took) EXPECT_LT(each, kSoon);
  EXPECT_THAT(text_of(ends[1]), HasSubstr("no gradient today"));
  for (const size_t other : {0, 2}) EXPECT_TRUE(error_of(ends[other])) << "no error on " << other;
  for (size_t rank = 0; rank < later.size(); ++rank) {
    EXPECT_NE(later[rank], "") << "a later pass of " << rank
                               << " must fail too; its end was: " << text_of(ends[rank]);
  }
}

// A tensor hook of the one runs the other.
TEST_F(DataParallelFailure, PassesOfTwoContextsDoNotMix) {
  on_members(1, [&](const Member& member) {
    DistributedDataParallel<NetImpl> net(std::make_shared<NetImpl>(), member.group, kSmallBuckets);
    Context first(member.agent);
    at::Tensor hidden = input(0, 0).set_requires_grad(true);
    const at::Tensor loss = net.forward(hidden * 1).sum();
    std::optional<Error> refused;
    net.module()->first->weight.register_hook([&](const at::Tensor&) {
      std::thread([&] {
        Context second(member.agent);
        try {
          second.backward({net.forward(input(0, 1)).sum()});
        } catch (const Error& error) {
          refused = error;
        }
      }).join();
    });
    first.backward({loss});
    ASSERT_TRUE(refused);
    EXPECT_THAT(refused->message(), HasSubstr("another backward pass"));
  });
}

TEST_F(DataParallelFailure, WhoIsLeftMakesANewReplica) {
  std::vector<Tensors> got(2);
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<BreakingImpl>();
    // A member that is late learns it in the constructor: the other may have left that before.
    EXPECT_ANY_THROW({
      Breaking net(module, member.group, kSmallBuckets);
      net.forward(input(member.rank, 0), member.rank == 1 ? Break::kInTheMiddle : Break::kNever)
          .sum()
          .backward();
    });
    forget_grads(*module);

    const ProcessGroup group = new_group(member.agent, {"t0", "t1"}, {kGroupTimeout});
    Breaking net(module, group, kSmallBuckets);
    net.forward(input(member.rank, 0), Break::kNever).sum().backward();

    expect_same(grads(*module), mean_grads(*module, 2, [](auto& alone, int64_t rank) {
                  return alone.forward(input(rank, 0), Break::kNever).sum();
                }));
    got[static_cast<size_t>(member.rank)] = grads(*module);
  });
  expect_alike(got);
}

// --- leaving -----------------------------------------------------------------------------------

TEST_P(DataParallelFailureInEveryWay, AMemberThatLeavesIsLost) {
  std::vector<std::optional<ProcessGroup>> groups(2);
  const auto begin = Clock::now();
  const auto ends = outcomes(2, [&](const Member& member) {
    groups[static_cast<size_t>(member.rank)] = member.group;
    Net net(std::make_shared<NetImpl>(), member.group, kSmallBuckets);
    for (int64_t i = 0; i < 5 - 3 * member.rank; ++i) {
      pass(member, GetParam(), [&] { return net_loss(net, member.rank, i); });
    }
  });

  EXPECT_LT(Clock::now() - begin, kSoon);
  EXPECT_EQ(text_of(ends[1]), "");
  const auto error = error_of(ends[0]);
  ASSERT_TRUE(error);
  if (GetParam() == Way::kPlain) {
    EXPECT_EQ(error->code(), ErrorCode::kPeerLost);
  }
  EXPECT_THAT(error->message(), HasSubstr("t1"));
}

TEST_P(DataParallelFailureInEveryWay, AMemberWhoseAgentStopsIsLost) {
  const auto begin = Clock::now();
  const auto ends = outcomes(2, [&](const Member& member) {
    Net net(std::make_shared<NetImpl>(), member.group, kSmallBuckets);
    for (int64_t i = 0; i < 5; ++i) {
      if (member.rank == 1 && i == 2) member.agent.shutdown_now();
      pass(member, GetParam(), [&] { return net_loss(net, member.rank, i); });
    }
  });

  EXPECT_LT(Clock::now() - begin, kSoon);
  for (const auto& end : ends) EXPECT_TRUE(error_of(end)) << "no error";
}

// Whoever is first to be through with the last pass may go while others still receive its sums.
TEST_P(DataParallelFailureInEveryWay, LeavingAfterTheLastPassHarmsNobody) {
  for (int i = 0; i < 30; ++i) {
    on_members(3, [&](const Member& member) {
      Net net(std::make_shared<NetImpl>(), member.group, kSmallBuckets);
      pass(member, GetParam(), [&] { return net_loss(net, member.rank, 0); });
    });
    if (HasFailure()) break;
  }
}

TEST_F(DataParallelFailure, AReplicaMayEndBetweenForwardAndBackward) {
  on_members(2, [&](const Member& member) {
    auto module = std::make_shared<NetImpl>();
    at::Tensor loss;
    {
      Net net(module, member.group);
      loss = net_loss(net, member.rank, 0);
    }
    // Nobody averages any more; whether that is an error or not, it must come to an end.
    try {
      loss.backward();
    } catch (const Error&) {
    }
    NetImpl::Module& base = *module;
    forget_grads(base);
    net_loss(*module, member.rank, 0).backward();

    auto alone = copy_of(*module);
    net_loss(*alone, member.rank, 0).backward();
    expect_same(grads(*module), grads(*alone), "the module is a plain one again");
  });
}

}  // namespace
}  // namespace weft::data_parallel

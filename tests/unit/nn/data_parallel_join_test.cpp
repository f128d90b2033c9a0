// Behaviour 40: members with different numbers of batches.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <stdexcept>

#include <torch/nn/modules/batchnorm.h>

#include "data_parallel_scene.h"

namespace weft::data_parallel {
namespace {

using nn::JoinOptions;
using Counts = std::vector<int64_t>;
using torch::optim::SGD;
using Net = DistributedDataParallel<NetImpl>;

/// One step of a member.
template <typename Network>
void step(const Member& member, Network& net, Way way, int64_t number) {
  SGD optimizer(net.module()->parameters(), 0.2);
  forget_grads(*net.module());
  if (way == Way::kPlain) {
    net_loss(net, member.rank, number).backward();
  } else {
    Context context(member.agent);
    context.backward({net_loss(net, member.rank, number)});
    for (at::Tensor& each : net.module()->parameters()) {
      each.mutable_grad() = context.gradient(each);
    }
  }
  optimizer.step();
}

/// The same in one process: those who have batches left, over all or over themselves.
template <typename M>
void steps_alone(M& net, const Counts& counts, const JoinOptions& options,
                 int64_t first_number = 0) {
  SGD optimizer(net.parameters(), 0.2);
  for (int64_t i = 0; i < *std::max_element(counts.begin(), counts.end()); ++i) {
    forget_grads(net);
    const auto active =
        std::count_if(counts.begin(), counts.end(), [&](int64_t n) { return n > i; });
    const auto over = options.average_over_active ? active : static_cast<int64_t>(counts.size());
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      if (counts[rank] <= i) continue;
      (net_loss(net, static_cast<int64_t>(rank), first_number + i) / over).backward();
    }
    optimizer.step();
  }
}

class DataParallelJoin : public Scene {
 protected:
  void expect_equal_to_one(const Counts& counts, Way way, const JoinOptions& options,
                           const DataParallelOptions& how = {}) {
    NetImpl alone;
    std::vector<Tensors> learned(counts.size());
    on_members(counts.size(), [&](const Member& member) {
      Net net(copy_of(alone), member.group, how);
      // Whoever makes a copy does it before anybody goes on.
      member.group.barrier();
      const auto rank = static_cast<size_t>(member.rank);

      nn::join(
          {&net},
          [&] {
            for (int64_t i = 0; i < counts[rank]; ++i) step(member, net, way, i);
          },
          options);

      learned[rank] = values(*net.module());
    });
    steps_alone(alone, counts, options);

    expect_alike(learned);
    expect_same(learned[0], values(alone));
  }
  template <typename M>
  void expect_to_go_on(const DataParallelOptions& how) {
    M alone;
    std::vector<Tensors> learned(3);
    const Counts first{1, 3, 0}, second{2, 0, 4}, all{2, 2, 2};
    on_members(3, [&](const Member& member) {
      DistributedDataParallel<M> net(copy_of(alone), member.group, how);
      member.group.barrier();
      const auto rank = static_cast<size_t>(member.rank);
      const auto batches = [&](const Counts& counts, int64_t number) {
        return [&, number] {
          for (int64_t i = 0; i < counts[rank]; ++i) step(member, net, Way::kPlain, number + i);
        };
      };

      nn::join({&net}, batches(first, 0));
      nn::join({&net}, batches(second, 10), {.average_over_active = true});
      batches(all, 20)();

      learned[rank] = values(*net.module());
    });
    steps_alone(alone, first, {}, 0);
    steps_alone(alone, second, {.average_over_active = true}, 10);
    steps_alone(alone, all, {}, 20);

    expect_alike(learned);
    expect_same(learned[0], values(alone));
  }
};

class DataParallelJoinCounts : public DataParallelJoin,
                               public testing::WithParamInterface<std::tuple<Counts, Way, bool>> {};
TEST_P(DataParallelJoinCounts, EqualsOneProcess) {
  const auto& [counts, way, over_active] = GetParam();
  expect_equal_to_one(counts, way, {.average_over_active = over_active});
}
INSTANTIATE_TEST_SUITE_P(, DataParallelJoinCounts,
                         testing::Combine(testing::Values(Counts{3, 3}, Counts{4, 2}, Counts{1, 3},
                                                          Counts{0, 3}, Counts{2, 0}, Counts{0, 0},
                                                          Counts{3, 1, 2}, Counts{0, 4, 1},
                                                          Counts{0, 0, 3}),
                                          testing::Values(Way::kPlain, Way::kContext),
                                          testing::Bool()));

TEST_F(DataParallelJoin, WorksWithManySmallBuckets) {
  expect_equal_to_one({1, 5, 3}, Way::kPlain, {}, {.first_bucket_bytes = 16, .bucket_bytes = 32});
  expect_equal_to_one({2, 0, 1}, Way::kContext, {}, {.first_bucket_bytes = 16, .bucket_bytes = 32});
}

TEST_F(DataParallelJoin, WorksWhereParametersMayBeUnused) {
  expect_equal_to_one({1, 3}, Way::kPlain, {}, {.find_unused_parameters = true});
  expect_equal_to_one({3, 0, 1}, Way::kContext, {}, {.find_unused_parameters = true});
}

TEST_F(DataParallelJoin, TrainingGoesOnAfterwards) { expect_to_go_on<NetImpl>({}); }

// Those who were in more passes know more about the order in which gradients come.
TEST_F(DataParallelJoin, TrainingGoesOnAfterwardsWithManySmallBuckets) {
  expect_to_go_on<NetImpl>({.first_bucket_bytes = 16, .bucket_bytes = 32});
  expect_to_go_on<UpsideDownImpl>({.first_bucket_bytes = 16, .bucket_bytes = 32});
}

TEST_F(DataParallelJoin, GradientsMayAccumulateInIt) {
  NetImpl alone;
  std::vector<Tensors> learned(2);
  on_members(2, [&](const Member& member) {
    Net net(copy_of(alone), member.group);
    member.group.barrier();
    SGD optimizer(net.module()->parameters(), 0.2);

    nn::join({&net}, [&] {
      for (int64_t i = 0; i < 1 + 2 * member.rank; ++i) {
        forget_grads(*net.module());
        {
          const auto apart = net.no_sync();
          net_loss(net, member.rank, 2 * i).backward();
        }
        net_loss(net, member.rank, 2 * i + 1).backward();
        optimizer.step();
      }
    });

    learned[static_cast<size_t>(member.rank)] = values(*net.module());
  });
  SGD optimizer(alone.parameters(), 0.2);
  for (int64_t i = 0; i < 3; ++i) {
    forget_grads(alone);
    for (int64_t rank = i == 0 ? 0 : 1; rank < 2; ++rank) {
      (net_loss(alone, rank, 2 * i) / 2).backward();
      (net_loss(alone, rank, 2 * i + 1) / 2).backward();
    }
    optimizer.step();
  }

  expect_alike(learned);
  expect_same(learned[0], values(alone));
}

TEST_F(DataParallelJoin, SeveralModulesJoinTogether) {
  const Counts counts{1, 4};
  std::vector<Tensors> first(2), second(2);
  NetImpl alone;
  on_members(2, [&](const Member& member) {
    const auto rank = static_cast<size_t>(member.rank);
    Net one(copy_of(alone), member.group), other(std::make_shared<NetImpl>(), member.group);

    nn::join({&one, &other}, [&] {
      for (int64_t i = 0; i < counts[rank]; ++i) {
        step(member, one, Way::kPlain, i);
        step(member, other, Way::kContext, i);
      }
    });

    first[rank] = values(*one.module());
    second[rank] = values(*other.module());
  });
  steps_alone(alone, counts, {});

  expect_alike(first);
  expect_alike(second);
  expect_same(first[0], values(alone));
}

// --- buffers -----------------------------------------------------------------------------------

struct NormalizedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer(norm(x)); }
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(6))};
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(6, 3))};
};

TEST_F(DataParallelJoin, BuffersAreThoseOfAMemberThatHadTheMost) {
  for (const bool broadcast : {true, false}) {
    for (const Counts& counts : {Counts{1, 4}, Counts{4, 1}, Counts{0, 2}}) {
      std::vector<Tensors> buffers(2), learned(2);
      Tensors of_the_longest;
      on_members(2, [&](const Member& member) {
        const auto rank = static_cast<size_t>(member.rank);
        DistributedDataParallel<NormalizedImpl> net(std::make_shared<NormalizedImpl>(),
                                                    member.group, {.broadcast_buffers = broadcast});
        const auto copies = [&] {
          Tensors all;
          for (const at::Tensor& each : net.module()->buffers()) all.push_back(each.clone());
          return all;
        };

        nn::join({&net}, [&] {
          for (int64_t i = 0; i < counts[rank]; ++i) step(member, net, Way::kPlain, i);
          if (counts[rank] == std::max(counts[0], counts[1])) of_the_longest = copies();
        });

        buffers[rank] = copies();
        learned[rank] = values(*net.module());
      });

      expect_alike(learned);
      expect_alike(buffers);
      expect_alike({of_the_longest, buffers[0]});
    }
  }
}

// --- failures ----------------------------------------------------------------------------------

TEST_F(DataParallelJoin, WhatOneThrowsEndsItForAll) {
  for (const Way way : {Way::kPlain, Way::kContext}) {
    const auto begin = std::chrono::steady_clock::now();
    // Member 0 waits for the others, 1 fails, 2 is in the middle of a pass.
    const auto ends = outcomes(3, [&](const Member& member) {
      Net net(std::make_shared<NetImpl>(), member.group);
      nn::join({&net}, [&] {
        for (int64_t i = 0; i < 4 * member.rank; ++i) {
          if (member.rank == 1 && i == 2) throw std::out_of_range("no batch today");
          step(member, net, way, i);
        }
      });
    });

    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
    EXPECT_THROW(std::rethrow_exception(ends[1]), std::out_of_range);
    EXPECT_TRUE(error_of(ends[0])) << "member 0 got no error";
    EXPECT_TRUE(error_of(ends[2])) << "member 2 got no error";
  }
}

TEST_F(DataParallelJoin, WhatTheFirstThrowsAtOnceEndsItForAll) {
  const auto begin = std::chrono::steady_clock::now();
  const auto ends = outcomes(2, [&](const Member& member) {
    Net net(std::make_shared<NetImpl>(), member.group);
    nn::join({&net}, [&] {
      if (member.rank == 0) throw std::out_of_range("no batch today");
      for (int64_t i = 0; i < 3; ++i) step(member, net, Way::kPlain, i);
    });
  });

  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  EXPECT_THROW(std::rethrow_exception(ends[0]), std::out_of_range);
  EXPECT_TRUE(error_of(ends[1])) << "member 1 got no error";
}

TEST_F(DataParallelJoin, AMemberThatIsLostEndsItForTheOthers) {
  const auto begin = std::chrono::steady_clock::now();
  const auto ends = outcomes(3, [&](const Member& member) {
    Net net(std::make_shared<NetImpl>(), member.group);
    nn::join({&net}, [&] {
      for (int64_t i = 0; i < 3 * member.rank; ++i) {
        if (member.rank == 1 && i == 1) member.agent.shutdown_now();
        step(member, net, Way::kPlain, i);
      }
    });
  });

  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon);
  for (const auto& end : ends) EXPECT_TRUE(error_of(end)) << "no error";
}

TEST_F(DataParallelJoin, NullIsAMistake) {
  EXPECT_THAT([] { nn::join({nullptr}, [] {}); },
              Throws<Error>(Property(&Error::code, ErrorCode::kInvalidArgument)));
}

}  // namespace
}  // namespace weft::data_parallel

// Process groups of agents in one process: what they compute, beside calls, in many types.
// SPDX-License-Identifier: BSD-3-Clause
#include "weft/process_group.h"

#include <atomic>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/collective/process_group_scene.h"

namespace weft::process_group_test {
namespace {

using test::expect_full;

constexpr int64_t kMebi = 1 << 20;

class ProcessGroupOfThree : public test::ProcessGroupScene {
 protected:
  ProcessGroupOfThree() : ProcessGroupScene({"a", "b", "c"}) {}
};

TEST_F(ProcessGroupOfThree, KnowsWhoIsInIt) {
  on_all([](Agent& agent, size_t rank) {
    const ProcessGroup group = new_group(agent, {"c", "a", "b"});
    EXPECT_EQ(group.size(), 3);
    EXPECT_EQ(group.rank(), static_cast<int>(rank + 1) % 3);
    EXPECT_EQ(group.members().at(0).name, "c");
    EXPECT_EQ(group.members().at(0).id, 2);
  });
  on_all([](Agent& agent, size_t rank) {
    EXPECT_EQ(new_group(agent).rank(), static_cast<int>(rank));
  });
}

TEST_F(ProcessGroupOfThree, ReducesEveryType) {
  in_group([](const ProcessGroup& group, int rank) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                      at::kInt, at::kByte, at::kComplexFloat}) {
      for (const int64_t size : {0L, 1L, 1000L, 40'003L}) {
        at::Tensor tensor = at::full({size}, rank + 1, type);
        group.all_reduce(tensor);
        expect_full(tensor, 6);
        tensor = at::full({size}, rank + 2, type);
        group.all_reduce(tensor, ReduceOp::kProduct);
        expect_full(tensor, 24);
        if (type == at::kComplexFloat) continue;
        tensor = at::full({size}, rank + 1, type);
        group.all_reduce(tensor, ReduceOp::kMin);
        expect_full(tensor, 1);
        tensor = at::full({size}, rank + 1, type);
        group.all_reduce(tensor, ReduceOp::kMax);
        expect_full(tensor, 3);
        if (!at::isFloatingType(type)) continue;
        tensor = at::full({size}, rank + 1, type);
        group.all_reduce(tensor, ReduceOp::kAverage);
        EXPECT_TRUE(tensor.to(at::kDouble).allclose(at::full({size}, 2., at::kDouble), 0.01));
      }
    }
    const at::Tensor flags = at::zeros({3}, at::kBool);
    flags[rank] = true;
    group.all_reduce(flags, ReduceOp::kMax);
    expect_full(flags, 1);
  });
}

TEST_F(ProcessGroupOfThree, GivesTheSameBitsToAll) {
  in_group([](const ProcessGroup& group, int) {
    for (const int64_t size : {999L, 100'001L}) {
      const at::Tensor tensor = at::randn({size});
      group.all_reduce(tensor, ReduceOp::kAverage);
      for (const at::Tensor& each : group.all_gather(tensor)) {
        EXPECT_TRUE(at::equal(each, tensor));
      }
    }
  });
}

TEST_F(ProcessGroupOfThree, ChangesTensorsInPlaceHoweverTheyLie) {
  in_group([](const ProcessGroup& group, int rank) {
    for (const int64_t rows : {3L, 300L}) {
      const at::Tensor whole = at::zeros({rows, 400});
      const at::Tensor columns = whole.slice(1, 0, 400, 2);
      columns.fill_(rank);
      group.all_reduce(columns);
      expect_full(columns, 3);
      expect_full(whole.slice(1, 1, 400, 2), 0);

      const at::Tensor turned = at::full({rows, 100}, rank).t();
      group.broadcast(turned, 2);
      expect_full(turned, 2);
    }
    const at::Tensor scalar = at::full({}, rank + 1.5);
    group.all_reduce(scalar, ReduceOp::kMax);
    EXPECT_EQ(scalar.item<double>(), 3.5);

    const at::Tensor leaf = at::full({2}, rank * 1.).requires_grad_();
    group.all_reduce(leaf);
    expect_full(leaf.detach(), 3);
    EXPECT_TRUE(leaf.requires_grad());
  });
}

// Elements meet those of the same index, not those of the same place in memory.
TEST_F(ProcessGroupOfThree, MembersMayHaveLaidOutATensorDifferently) {
  in_group([](const ProcessGroup& group, int rank) {
    at::Tensor tensor = at::arange(12.).view({3, 4}).clone();
    if (rank == 1) tensor = tensor.t().contiguous().t();
    if (rank == 2) tensor = at::arange(24.).view({3, 8}).slice(1, 0, 8, 2) * 0 + tensor;

    group.all_reduce(tensor);
    EXPECT_TRUE(at::equal(tensor, at::arange(12.).view({3, 4}) * 3));
    group.broadcast(tensor, 1);
    EXPECT_TRUE(at::equal(tensor, at::arange(12.).view({3, 4}) * 3));
  });
}

TEST_F(ProcessGroupOfThree, Broadcasts) {
  in_group([](const ProcessGroup& group, int rank) {
    for (int root = 0; root < 3; ++root) {
      for (const int64_t size : {0L, 5L, 3 * kMebi / 4}) {
        const at::Tensor tensor = at::full({size}, rank == root ? 40 + root : -1, at::kFloat);
        group.broadcast(tensor, root);
        expect_full(tensor, 40 + root);
      }
    }
  });
}

TEST_F(ProcessGroupOfThree, GathersDifferentShapesAndTypes) {
  in_group([](const ProcessGroup& group, int rank) {
    const at::ScalarType types[] = {at::kFloat, at::kBool, at::kHalf};
    const auto all = group.all_gather(at::ones({rank, 2}, types[rank]));
    ASSERT_EQ(all.size(), 3u);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(all[static_cast<size_t>(i)].scalar_type(), types[i]);
      EXPECT_EQ(all[static_cast<size_t>(i)].sizes(), (std::vector<int64_t>{i, 2}));
      expect_full(all[static_cast<size_t>(i)], 1);
    }
    const at::Tensor own = at::full({40'000}, rank);
    const auto large = group.all_gather(own);
    own.fill_(-1);
    group.barrier();
    for (size_t i = 0; i < 3; ++i) expect_full(large[i], static_cast<double>(i));
    for (const at::Tensor& each : group.all_gather(at::full({2}, rank).to_sparse())) {
      EXPECT_TRUE(each.is_sparse());
    }
  });
}

TEST_F(ProcessGroupOfThree, ReducesAndScatters) {
  in_group([](const ProcessGroup& group, int rank) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 3; ++i) tensors.push_back(at::full({i + 1, 20'000}, rank + i).t());

    const at::Tensor mine = group.reduce_scatter(tensors);
    EXPECT_EQ(mine.sizes(), (std::vector<int64_t>{20'000, rank + 1}));
    expect_full(mine, 3 + 3 * rank);
    expect_full(tensors[0], rank);
    expect_full(group.reduce_scatter({at::full({}, rank * 1.f), at::ones({0}), at::ones({2})},
                                     ReduceOp::kAverage),
                1);
  });
}

TEST_F(ProcessGroupOfThree, BarrierWaitsForAll) {
  std::atomic<int> came{0};
  in_group([&](const ProcessGroup& group, int) {
    for (int round = 1; round <= 200; ++round) {
      ++came;
      group.barrier();
      EXPECT_GE(came, 3 * round);
    }
  });
}

TEST_F(ProcessGroupOfThree, LargeTensors) {
  in_group([](const ProcessGroup& group, int rank) {
    for (const int64_t mebibytes : {3L, 10L}) {
      const at::Tensor tensor = at::full({mebibytes * kMebi / 4 + 1}, rank + 1, at::kFloat);
      for (int round = 0; round < 3; ++round) {
        tensor.fill_(rank + 1);
        group.all_reduce(tensor);
        expect_full(tensor, 6);
      }
    }
  });
}

TEST_F(ProcessGroupOfThree, ManyOperationsAtOnce) {
  in_group([](const ProcessGroup& group, int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<Future<void>> begun;
    for (int i = 0; i < 200; ++i) {
      tensors.push_back(at::full({i % 3 == 0 ? 30'000 : i}, rank + i, at::kDouble));
      begun.push_back(i % 5 == 0 ? group.broadcast_async(tensors.back(), i % 3)
                                 : group.all_reduce_async(tensors.back()));
    }
    wait_all(begun);
    for (int i = 0; i < 200; ++i) {
      expect_full(tensors[static_cast<size_t>(i)], i % 5 == 0 ? i + i % 3 : 3 * i + 3);
    }
  });
}

int64_t twice(int64_t value) { return 2 * value; }

TEST_F(ProcessGroupOfThree, CallsGoOnBesideIt) {
  in_group([&](const ProcessGroup& group, int rank) {
    std::vector<Future<int64_t>> answers;
    for (int round = 0; round < 50; ++round) {
      const at::Tensor tensor = at::full({round % 2 == 0 ? 10 : 50'000}, rank);
      for (int64_t i = 0; i < 5; ++i) {
        answers.push_back(agents[static_cast<size_t>(rank)].async<twice>((rank + 1) % 3, i));
      }
      group.all_reduce(tensor);
      expect_full(tensor, 3);
      answers.push_back(agents[static_cast<size_t>(rank)].async<twice>(0, 4));
    }
    EXPECT_EQ(answers.size(), 300u);
    for (const auto& each : answers) EXPECT_LE(each.wait(), 8);
  });
}

// What waits for an operation may block, on calls and on further operations, whatever it waits for.
TEST_F(ProcessGroupOfThree, ContinuationsMayBlock) {
  in_group([&](const ProcessGroup& group, int rank) {
    Agent& agent = agents[static_cast<size_t>(rank)];
    for (const int64_t elements : {10L, 9000L, 60'000L}) {
      for (int round = 0; round < 10; ++round) {
        const at::Tensor tensor = at::full({elements}, rank, at::kDouble);
        const auto then = [&](auto&&...) {
          group.barrier();
          return agent.sync<twice>((rank + 1) % 3, 1) + agent.sync<twice>((rank + 2) % 3, 1);
        };
        const auto finish = [](const Future<int64_t>& future) {
          ASSERT_TRUE(future.wait_for(std::chrono::seconds(30)));
          EXPECT_EQ(future.wait(), 4);
        };
        finish(group.all_gather_async(tensor).then(then));
        finish(group.all_reduce_async(tensor).then(then));
        finish(group.broadcast_async(tensor, round % 3).then(then));
      }
    }
  });
}

TEST_F(ProcessGroupOfThree, SeveralGroupsFromSeveralThreads) {
  const std::vector<std::vector<std::string>> sets{
      {"a", "b", "c"}, {"a", "b"}, {"b", "c"}, {"c", "a"}};
  std::vector<std::thread> threads;
  for (const auto& names : sets) {
    for (const std::string& name : names) {
      threads.emplace_back([this, names, name] {
        Agent& agent = agents[static_cast<size_t>(name[0] - 'a')];
        const ProcessGroup group = new_group(agent, names);
        for (int round = 0; round < 30; ++round) {
          const at::Tensor tensor = at::full({round % 3 == 0 ? 20'000 : 3}, group.rank());
          group.all_reduce(tensor, ReduceOp::kMax);
          expect_full(tensor, group.size() - 1);
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ProcessGroupOfThree, OfOneMember) {
  const ProcessGroup alone = new_group(agents[1], {"b"});
  const at::Tensor tensor = at::full({50'000}, 3.);

  alone.all_reduce(tensor, ReduceOp::kAverage);
  alone.broadcast(tensor, 0);
  alone.barrier();

  expect_full(tensor, 3);
  expect_full(alone.all_gather(tensor).at(0), 3);
  expect_full(alone.reduce_scatter({tensor}), 3);
}

double handled(int64_t value) {
  const ProcessGroup group = new_group(current_agent());
  const at::Tensor tensor = at::full({3}, static_cast<double>(value));
  group.all_reduce(tensor);
  return tensor[0].item<double>();
}

TEST_F(ProcessGroupOfThree, WithinHandlers) {
  std::vector<Future<double>> sums;
  for (int64_t i = 0; i < 3; ++i) sums.push_back(agents[0].async<handled>(static_cast<int>(i), i));

  EXPECT_EQ(wait_all(sums), (std::vector<double>{3, 3, 3}));
}

}  // namespace
}  // namespace weft::process_group_test

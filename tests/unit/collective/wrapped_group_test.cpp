// Groups that a process group of c10d's carries.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/nn/modules/linear.h>

#include "unit/collective/process_group_scene.h"
#include "weft/c10d.h"
#include "weft/nn/distributed_data_parallel.h"

namespace weft::wrapped_group_test {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::expect_full;
using testing::HasSubstr;

// What the members of a fake c10d group share. An operation is over when all have begun it.
struct Board {
  struct Operation {
    std::vector<at::Tensor> given;
    at::Tensor by_root;  // of a broadcast
    bool over = false;
  };
  explicit Board(size_t members) : size(members) {}

  const size_t size;
  std::mutex mutex;
  std::map<size_t, Operation> operations;  // by their number on each member
  std::atomic<size_t> all_reduces{0}, broadcasts{0};
  std::atomic<bool> stuck{false};         // operations do not end any more
  std::atomic<bool> refuses{false};       // operations throw when they are begun
  std::atomic<bool> fails{false};         // operations end with an error
  std::atomic<bool> is_destroyed{false};  // one of the groups
};

class FakeWork final : public c10d::Work {
 public:
  FakeWork(std::shared_ptr<Board> board, size_t number)
      : board_(std::move(board)), number_(number) {}
  bool isCompleted() override {
    const std::lock_guard lock(board_->mutex);
    return board_->operations[number_].over;
  }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    if (board_->fails) throw std::runtime_error("the cable was pulled");
    return true;
  }

 private:
  const std::shared_ptr<Board> board_;
  const size_t number_;
};

// Computes in the memory of all members, which is that of one process.
class FakeGroup final : public c10d::ProcessGroup {
 public:
  FakeGroup(int rank, std::shared_ptr<Board> board, std::string backend)
      : ProcessGroup(rank, static_cast<int>(board->size)),
        board_(std::move(board)),
        backend_(std::move(backend)) {}
  ~FakeGroup() override { board_->is_destroyed = true; }

  const std::string getBackendName() const override { return backend_; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    ++board_->all_reduces;
    return enter(tensors, -1);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    ++board_->broadcasts;
    return enter(tensors, options.rootRank);
  }

 private:
  c10::intrusive_ptr<c10d::Work> enter(const std::vector<at::Tensor>& tensors, int64_t root) {
    EXPECT_EQ(tensors.size(), 1u);
    if (board_->refuses) throw std::runtime_error("no more today");
    const std::lock_guard lock(board_->mutex);
    Board::Operation& operation = board_->operations[next_];
    operation.given.push_back(tensors[0]);
    if (getRank() == root) operation.by_root = tensors[0];
    if (operation.given.size() == board_->size && !board_->stuck) {
      const at::Tensor result =
          root >= 0 ? operation.by_root.clone() : at::stack(operation.given).sum(0);
      for (at::Tensor& each : operation.given) each.copy_(result);
      operation.over = true;
    }
    return c10::make_intrusive<FakeWork>(board_, next_++);
  }

  const std::shared_ptr<Board> board_;
  const std::string backend_;
  size_t next_ = 0;
};

class WrappedGroup : public test::ProcessGroupScene {
 protected:
  WrappedGroup() : ProcessGroupScene({"a", "b", "c"}) {}

  c10::intrusive_ptr<c10d::ProcessGroup> fake(int rank, const std::string& backend = "fake") {
    return c10::make_intrusive<FakeGroup>(rank, board, backend);
  }
  void in_wrapped_group(const std::function<void(const ProcessGroup&, int)>& body,
                        const GroupOptions& options = {}) {
    on_all([&](Agent& agent, size_t rank) {
      const int own = static_cast<int>(rank);
      body(wrap_group(agent, fake(own), {}, options), own);
    });
  }

  std::shared_ptr<Board> board = std::make_shared<Board>(3);
};

TEST_F(WrappedGroup, IsCarriedByTheGroupOfC10d) {
  in_wrapped_group([](const ProcessGroup& group, int rank) {
    at::Tensor tensor = at::full({4, 5}, rank + 1.0f);
    group.all_reduce(tensor);
    expect_full(tensor, 6);
    tensor = at::full({7}, rank + 1.0f).t();
    group.all_reduce(tensor, ReduceOp::kAverage);
    expect_full(tensor, 2);
    tensor = at::full({3, 2}, rank, at::kLong);
    group.broadcast(tensor, 2);
    expect_full(tensor, 2);
    group.all_reduce_async(at::ones({0})).wait();
  });
  EXPECT_EQ(board->all_reduces, 6u);  // nothing is sent of no elements
  EXPECT_EQ(board->broadcasts, 3u);
}

TEST_F(WrappedGroup, DoesTheRestOverTheAgentsConnections) {
  in_wrapped_group([](const ProcessGroup& group, int rank) {
    at::Tensor tensor = at::full({5}, rank + 1, at::kBFloat16);
    group.all_reduce(tensor);
    expect_full(tensor, 6);
    // What the minimum of a number and NaN is, every backend sees in its own way.
    tensor = at::full({5}, rank + 1.0f);
    group.all_reduce(tensor, ReduceOp::kMin);
    expect_full(tensor, 1);
    EXPECT_EQ(group.all_gather(at::ones({rank})).size(), 3u);
    expect_full(group.reduce_scatter({at::ones({2}), at::ones({2}), at::ones({2})}), 3);
    group.barrier();
  });
  EXPECT_EQ(board->all_reduces, 0u);
}

TEST_F(WrappedGroup, CarriesTheGradientsOfAReplica) {
  in_wrapped_group([this](const ProcessGroup& group, int rank) {
    nn::DistributedDataParallel<torch::nn::LinearImpl> replica(
        std::make_shared<torch::nn::LinearImpl>(3, 2), group);
    for (int pass = 0; pass < 3; ++pass) {
      replica.module()->zero_grad();
      replica.forward(at::full({1, 3}, rank + 1.0f)).sum().backward();
      expect_full(replica.module()->weight.grad(), 2);
      expect_full(replica.module()->bias.grad(), 1);
    }
    const size_t carried = board->all_reduces;
    EXPECT_GE(carried, 3u);
    // The replica has it now.
    at::Tensor tensor = at::ones({4});
    group.all_reduce(tensor);
    expect_full(tensor, 3);
    group.barrier();
    EXPECT_EQ(board->all_reduces, carried);
  });
}

// Each member has its own number of batches. An operation without some of the members goes over the
// agents' connections.
TEST_F(WrappedGroup, CarriesWhatAllTakePartIn) {
  in_wrapped_group([this](const ProcessGroup& group, int rank) {
    nn::DistributedDataParallel<torch::nn::LinearImpl> replica(
        std::make_shared<torch::nn::LinearImpl>(3, 2), group, {.find_unused_parameters = true});
    const size_t before = board->all_reduces;
    nn::join({&replica}, [&] {
      for (int pass = 0; pass <= rank; ++pass) {
        replica.module()->zero_grad();
        replica.forward(at::full({1, 3}, rank + 1.0f)).sum().backward();
        expect_full(replica.module()->bias.grad(), pass == 0 ? 1 : pass == 1 ? 2.0 / 3 : 1.0 / 3);
      }
    });
    group.barrier();
    EXPECT_GT(board->all_reduces, before);
  });
}

// The constructor of a replica fails on one member: all know that the replica had the carrier.
TEST_F(WrappedGroup, MembersAgreeAboutWhoHasTheCarrierAfterAFailure) {
  in_wrapped_group([](const ProcessGroup& group, int rank) {
    const nn::DataParallelOptions options{.sparse_parameters =
                                              rank == 1 ? std::vector<std::string>{"typo"}
                                                        : std::vector<std::string>{}};
    EXPECT_THROW(nn::DistributedDataParallel<torch::nn::LinearImpl>(
                     std::make_shared<torch::nn::LinearImpl>(3, 2), group, options),
                 Error);
    at::Tensor tensor = at::ones({4});
    group.all_reduce(tensor);
    expect_full(tensor, 3);
  });
  EXPECT_EQ(board->all_reduces, 0u);
}

TEST_F(WrappedGroup, FirstOperationDoesNotWaitForTheOthersToBeginIt) {
  std::latch begun(1);
  in_wrapped_group(
      [&](const ProcessGroup& group, int rank) {
        const at::Tensor tensor = at::full({4}, rank + 1.0f);
        if (rank != 0) begun.wait();
        const Future<void> reduced = group.all_reduce_async(tensor);
        if (rank == 0) begun.count_down();
        reduced.wait();
        expect_full(tensor, 6);
      },
      {.timeout = 5s});
}

TEST_F(WrappedGroup, MustHaveTheSameMembersInTheSameOrder) {
  on_all([this](Agent& agent, size_t rank) {
    const Error error = error_of([&] {
      wrap_group(agent, fake(static_cast<int>(rank)), {"b", "a", "c"});
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("'fake: 1 of 3' at b and should be 'fake: 0 of 3'"));
  });
  on_all([this](Agent& agent, size_t rank) {
    const Error error = error_of([&] {
      if (rank == 2) return new_group(agent);
      return wrap_group(agent, fake(static_cast<int>(rank)));
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("fake: "));
  });
  on_all([this](Agent& agent, size_t rank) {
    if (rank == 2) return;
    const Error error = error_of([&] {
      wrap_group(agent, fake(static_cast<int>(rank)), {"a", "b"});
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("[a, b]: 2 members, and 3 in the group"));
  });
  EXPECT_EQ(error_of([this] { wrap_group(agents[0], {}); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error_of([this] { wrap_group(agents[0], fake(0, "nccl")); }).message(),
              HasSubstr("GroupOptions::nccl"));
}

TEST_F(WrappedGroup, ErrorsOfC10dNameTheBackend) {
  board->refuses = true;
  in_wrapped_group([](const ProcessGroup& group, int) {
    const Error error = error_of([&] { group.all_reduce(at::ones({4})); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.message(), HasSubstr("fake: std::runtime_error: no more today"));
  });
  board->refuses = false;
  board->fails = true;
  in_wrapped_group([](const ProcessGroup& group, int) {
    const Error error = error_of([&] { group.all_reduce(at::ones({4})); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.message(), HasSubstr("fake: std::runtime_error: the cable was pulled"));
  });
}

TEST_F(WrappedGroup, GivesUpWhatDoesNotEnd) {
  board->stuck = true;
  in_wrapped_group(
      [](const ProcessGroup& group, int rank) {
        const at::Tensor tensor = at::full({4}, rank);
        const Error error = error_of([&] { group.all_reduce(tensor); });
        EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.message();
        expect_full(tensor, rank);  // c10d has a copy
        EXPECT_EQ(error_of([&] { group.all_reduce(tensor); }).code(), ErrorCode::kTimeout);
      },
      {.timeout = 300ms});
  // It would wait in its destructor for what does not end.
  EXPECT_FALSE(board->is_destroyed);
}

}  // namespace
}  // namespace weft::wrapped_group_test

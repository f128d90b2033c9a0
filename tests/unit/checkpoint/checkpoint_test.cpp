// Checkpoints over a group of workers in this process.
// SPDX-License-Identifier: BSD-3-Clause
#include "weft/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "base/temporary_directory.h"
#include "checkpoint/manifest.h"
#include "support/loopback_group.h"
#include "support/scenario.h"
#include "unit/checkpoint/test_disk.h"

namespace weft::checkpoint {
namespace {

using autograd::Context;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using Linear = nn::RemoteModule<torch::nn::LinearImpl>;

auto fails_with(ErrorCode code, const std::string& text) {
  return Throws<Error>(
      AllOf(Property(&Error::code, code), Property(&Error::message, HasSubstr(text))));
}

/// A model over three workers, its optimizer and its checkpoints.
class Training {
 public:
  Training(test::LoopbackGroup& group, const std::string& directory, double lr = 0.01,
           int64_t width = 3)
      : agent_(group[0]),
        first_(agent_, "b", 4, width),
        second_(agent_, "c", width, 2),
        own_(2, 1),
        optimizer_(agent_, parameters(), AdamOptions(lr)),
        checkpoint(agent_, directory) {
    checkpoint.add("first", first_);
    checkpoint.add("second", second_);
    checkpoint.add("own", own_);
    checkpoint.add("optimizer", optimizer_);
  }

  void step() {
    Context context(agent_);
    const at::Tensor x = at::rand({5, 4});
    at::Tensor y = second_.forward(at::dropout(first_.forward(x), 0.3, true));
    context.backward({own_->forward(y).pow(2).sum()});
    optimizer_.step(context);
  }
  std::vector<at::Tensor> everything() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, tensor] : first_.state()) all.push_back(tensor);
    for (const auto& [name, tensor] : second_.state()) all.push_back(tensor);
    for (const auto& tensor : own_->parameters()) all.push_back(tensor.detach().clone());
    return all;
  }
  optim::DistributedOptimizer<Adam>& optimizer() { return optimizer_; }

 private:
  std::vector<RRef<at::Tensor>> parameters() {
    auto all = first_.remote_parameters();
    for (auto& each : second_.remote_parameters()) all.push_back(each);
    for (auto& each : nn::parameter_rrefs(agent_, *own_)) all.push_back(each);
    return all;
  }

  Agent& agent_;
  Linear first_, second_;
  torch::nn::Linear own_;
  optim::DistributedOptimizer<Adam> optimizer_;

 public:
  Checkpoint checkpoint;
};

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

class Checkpoints : public testing::Test {
 protected:
  /// A worker's files go through this disk from now on.
  template <typename D>
  std::shared_ptr<D> give_disk(size_t rank) {
    auto disk = std::make_shared<D>();
    Storage::of(*detail::AgentAccess::core(group[rank])).use(disk);
    return disk;
  }

  test::LoopbackGroup group{{"a", "b", "c"}};
  base::TemporaryDirectory directory{"weft-checkpoint"};
};

TEST_F(Checkpoints, GoOnBitForBit) {
  Training training(group, directory.path());
  for (int i = 0; i < 3; ++i) training.step();
  training.optimizer().set_lr(0.02);
  training.checkpoint.save({{"epoch", int64_t{3}}});
  for (int i = 0; i < 4; ++i) training.step();

  Training resumed(group, directory.path(), 0.5);
  const auto loaded = resumed.checkpoint.load();
  for (int i = 0; i < 4; ++i) resumed.step();

  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->number, 1u);
  EXPECT_EQ(std::get<int64_t>(loaded->notes.at("epoch")), 3);
  EXPECT_EQ(resumed.optimizer().lr(), 0.02);
  expect_equal(resumed.everything(), training.everything());
}

TEST_F(Checkpoints, StepsGoOnWhileAPartIsWritten) {
  Training training(group, directory.path());
  training.step();
  const auto saved = training.everything();
  const auto disk = give_disk<HeldDisk>(1);
  uint64_t number = 0;
  std::thread saving([&] { number = training.checkpoint.save(); });
  disk->wait_until_it_writes();

  EXPECT_NO_THROW(training.step());
  EXPECT_NO_THROW((void)training.optimizer().state());
  disk->release();
  saving.join();

  EXPECT_FALSE(at::equal(training.everything()[0], saved[0]));
  training.checkpoint.load(number);
  expect_equal(training.everything(), saved);
}

TEST_F(Checkpoints, EveryPartIsReadOnce) {
  Training training(group, directory.path());
  training.step();
  const Folder folder(directory.path(), training.checkpoint.save());
  const auto manifest = folder.read();
  std::vector<std::shared_ptr<CountingDisk>> disks;
  for (size_t i = 0; i < group.size(); ++i) disks.push_back(give_disk<CountingDisk>(i));

  training.checkpoint.load();

  EXPECT_EQ(disks[0]->bytes_read, manifest.parts.at("a").bytes);
  EXPECT_EQ(disks[1]->bytes_read, manifest.parts.at("b").bytes);
  EXPECT_EQ(disks[2]->bytes_read, manifest.parts.at("c").bytes);
}

TEST_F(Checkpoints, PartsThatWereReadAreFreedAfterwards) {
  Training training(group, directory.path());
  const Folder folder(directory.path(), training.checkpoint.save());
  const auto owned_by_b = [this] { return group[1].debug_info().counters.at("rrefs.owned"); };
  const uint64_t before = owned_by_b();

  training.checkpoint.load();
  EXPECT_TRUE(test::eventually([&] { return owned_by_b() == before; }));

  std::filesystem::remove(folder.part("c", folder.read().save));
  EXPECT_THROW(training.checkpoint.load(), Error);
  EXPECT_TRUE(test::eventually([&] { return owned_by_b() == before; }));
}

TEST_F(Checkpoints, NothingIsLoadedFromNothing) {
  Training training(group, directory.path() + "/none");

  EXPECT_FALSE(training.checkpoint.load());
  EXPECT_THAT([&] { training.checkpoint.load(7); },
              fails_with(ErrorCode::kInvalidArgument, "no checkpoint 7"));
}

TEST_F(Checkpoints, TheLastTwoAreKept) {
  Training training(group, directory.path());
  make_directory(directory.path() + "/00000002");  // of a save that was killed

  for (int i = 0; i < 4; ++i) training.checkpoint.save();

  EXPECT_THAT(Folder::numbers(directory.path()), ElementsAre(5, 6));
  EXPECT_THAT(training.checkpoint.numbers(), ElementsAre(5, 6));
  EXPECT_EQ(training.checkpoint.load(5).number, 5u);
}

TEST_F(Checkpoints, AnUnfinishedOneDoesNotCount) {
  Training training(group, directory.path());
  training.checkpoint.save({{"n", int64_t{1}}});
  const uint64_t second = training.checkpoint.save({{"n", int64_t{2}}});
  std::filesystem::remove(Folder(directory.path(), second).manifest());

  const auto loaded = training.checkpoint.load();

  EXPECT_EQ(std::get<int64_t>(loaded->notes.at("n")), 1);
}

TEST_F(Checkpoints, ADamagedPartIsNamedAndChangesNothing) {
  Training training(group, directory.path());
  const Folder folder(directory.path(), training.checkpoint.save());
  const uint64_t save = folder.read().save;
  training.step();
  const auto before = training.everything();
  {
    std::fstream part(folder.part("c", save), std::ios::in | std::ios::out | std::ios::binary);
    part.seekp(200);
    part.put('!');
  }

  EXPECT_THAT(
      [&] { training.checkpoint.load(); },
      fails_with(ErrorCode::kStorageFailed, "c: " + folder.part("c", save) + " is damaged"));
  expect_equal(training.everything(), before);

  std::filesystem::remove(folder.part("b", save));
  EXPECT_THAT([&] { training.checkpoint.load(); },
              fails_with(ErrorCode::kStorageFailed, folder.part("b", save) + ": No such file"));
  expect_equal(training.everything(), before);
}

TEST_F(Checkpoints, OneOfAnotherModelIsRefusedAndChangesNothing) {
  Training training(group, directory.path());
  training.checkpoint.save();
  Training wider(group, directory.path(), 0.01, 5);
  const auto before = wider.everything();

  EXPECT_THAT([&] { wider.checkpoint.load(); },
              fails_with(ErrorCode::kInvalidArgument, "weight is Float [3, 4] and not Float"));
  expect_equal(wider.everything(), before);

  Checkpoint other(group[0], directory.path());
  Linear unknown(group[0], "b", 4, 3);
  other.add("unknown", unknown);
  EXPECT_THAT([&] { other.load(); },
              fails_with(ErrorCode::kInvalidArgument, "\"unknown\" is not in this checkpoint"));
}

TEST_F(Checkpoints, OneWithoutAPartOfAWorkerIsRefused) {
  Checkpoint saved(group[0], directory.path());
  saved.save();
  Training training(group, directory.path());

  EXPECT_THAT([&] { training.checkpoint.load(); },
              Throws<Error>(Property(&Error::code, ErrorCode::kInvalidArgument)));
}

TEST_F(Checkpoints, AnotherOptimizerIsRefused) {
  Training training(group, directory.path());
  training.step();
  training.checkpoint.save();
  Linear first(group[0], "b", 4, 3);
  optim::DistributedOptimizer<torch::optim::SGD> sgd(group[0], first.remote_parameters(),
                                                     torch::optim::SGDOptions(0.1));
  Checkpoint other(group[0], directory.path());
  other.add("optimizer", sgd);

  EXPECT_THAT([&] { other.load(); },
              fails_with(ErrorCode::kInvalidArgument, "\"optimizer\" is not a torch::optim::SGD"));

  // Of the same fields.
  optim::DistributedOptimizer<torch::optim::AdamW> adamw(group[0], first.remote_parameters(),
                                                         torch::optim::AdamWOptions(0.1));
  Checkpoint similar(group[0], directory.path());
  similar.add("optimizer", adamw);
  EXPECT_THAT([&] { similar.load(); },
              fails_with(ErrorCode::kInvalidArgument, "is not a torch::optim::AdamW"));
}

struct OddBuffersImpl : torch::nn::Module {
  explicit OddBuffersImpl(bool overlapping)
      : odd(register_buffer("odd",
                            overlapping ? at::ones({1}).expand({3}) : at::eye(3).to_sparse())) {}
  at::Tensor odd;
};
TEST_F(Checkpoints, ModulesWithoutTensorsAndWithSparseOnesAreLoaded) {
  const torch::nn::Dropout nothing(0.5);
  const auto sparse = std::make_shared<OddBuffersImpl>(false);
  Checkpoint checkpoint(group[0], directory.path());
  checkpoint.add("nothing", nothing);
  checkpoint.add("sparse", sparse);
  checkpoint.save();
  sparse->odd.zero_();

  checkpoint.load();

  EXPECT_TRUE(at::equal(sparse->odd.to_dense(), at::eye(3)));
}

TEST_F(Checkpoints, WhatCannotBeLoadedIsRefusedBeforeAnythingChanges) {
  const torch::nn::Linear linear(1, 1);
  const auto odd = std::make_shared<OddBuffersImpl>(true);
  Checkpoint checkpoint(group[0], directory.path());
  checkpoint.add("linear", linear);
  checkpoint.add("odd", odd);
  checkpoint.save();
  const c10::AutoGradMode off(false);
  linear->weight.fill_(3);

  EXPECT_THAT([&] { checkpoint.load(); }, fails_with(ErrorCode::kInvalidArgument, "share memory"));
  EXPECT_EQ(linear->weight.item<float>(), 3);
}

TEST_F(Checkpoints, NotesThatCannotBeWrittenAreRefusedBeforeAnythingIs) {
  Training training(group, directory.path());

  EXPECT_THROW(training.checkpoint.save({{"meta", at::ones({1}, at::kMeta)}}), Error);

  EXPECT_THAT(Folder::numbers(directory.path()), ElementsAre());
}

TEST_F(Checkpoints, NamesAreUniqueAndPathsAreNeeded) {
  Checkpoint checkpoint(group[0], directory.path());
  const torch::nn::Linear linear(1, 1);
  checkpoint.add("linear", linear);

  EXPECT_THAT([&] { checkpoint.add("linear", linear); },
              fails_with(ErrorCode::kInvalidArgument, "\"linear\""));
  EXPECT_THAT([&] { checkpoint.add("", linear); },
              fails_with(ErrorCode::kInvalidArgument, "non-empty"));
  EXPECT_THAT([&] { Checkpoint(group[0], ""); }, fails_with(ErrorCode::kInvalidArgument, "path"));
}

TEST_F(Checkpoints, AWorkerThatIsGoneLeavesThePreviousOne) {
  Training training(group, directory.path());
  training.checkpoint.save();
  group[2].shutdown_now();

  EXPECT_THROW(training.checkpoint.save(), Error);

  EXPECT_THAT(Folder::numbers(directory.path()), ElementsAre(1));
}

// It may still be written by somebody who was too slow.
TEST_F(Checkpoints, ANumberThatWasTriedIsNotUsedAgain) {
  Checkpoint checkpoint(group[0], directory.path());
  Linear first(group[0], "b", 4, 3);
  checkpoint.add("first", first);
  checkpoint.save();
  group.network().set_faults([](const transport::FrameInFlight&) {
    return transport::Fault{transport::Fault::Kind::kDropConnection, {}, 0};
  });
  EXPECT_THROW(checkpoint.save(), Error);
  group.network().set_faults(nullptr);

  // The connections come back one by one.
  uint64_t number = 0;
  for (int i = 0; i < 100 && number == 0; ++i) {
    try {
      number = checkpoint.save();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
    }
  }
  EXPECT_GE(number, 3u);
}

TEST_F(Checkpoints, APathThatCannotBeWrittenIsNamed) {
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "no directory";
  Training training(group, file + "/below");

  EXPECT_THAT([&] { training.checkpoint.save(); },
              fails_with(ErrorCode::kStorageFailed, file + "/below"));
}

}  // namespace
}  // namespace weft::checkpoint

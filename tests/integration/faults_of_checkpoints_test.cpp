// Checkpoints of real processes: killed while they save, killed and resumed, and a full disk.
// SPDX-License-Identifier: BSD-3-Clause
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "base/temporary_directory.h"
#include "fault_scene.h"
#include "support/scenario.h"
#include "weft/checkpoint.h"

namespace weft::test {
namespace {

using autograd::Context;
using checkpoint::Checkpoint;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using Clock = std::chrono::steady_clock;

struct DroppingLinearImpl : torch::nn::Module {
  DroppingLinearImpl(int64_t in, int64_t out)
      : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(at::Tensor x) { return at::dropout(linear->forward(x), 0.2, is_training()); }
  torch::nn::Linear linear;
};
using RemoteLinear = nn::RemoteModule<DroppingLinearImpl>;

std::string directory() { return std::getenv("WEFT_TEST_DIRECTORY"); }

/// Two remote layers with dropout on different workers and one here, and their optimizer.
struct Training {
  Training()
      : first("worker1", 8, 16),
        second("worker2", 16, 4),
        own(4, 1),
        optimizer(parameters(), AdamOptions(0.01)),
        checkpoint(directory()) {
    checkpoint.add("first", first);
    checkpoint.add("second", second);
    checkpoint.add("own", own);
    checkpoint.add("optimizer", optimizer);
  }
  std::vector<RRef<at::Tensor>> parameters() {
    auto all = first.remote_parameters();
    for (auto& each : second.remote_parameters()) all.push_back(each);
    for (auto& each : nn::parameter_rrefs(*own)) all.push_back(each);
    return all;
  }
  void step() {
    Context context;
    const at::Tensor x = at::rand({5, 8});
    context.backward({own->forward(second.forward(first.forward(x))).pow(2).sum()});
    optimizer.step(context);
  }
  /// Every byte of every parameter.
  void write_down(const std::string& path) {
    std::ofstream out(path, std::ios::binary);
    const auto write = [&out](const at::Tensor& tensor) {
      out.write(static_cast<const char*>(tensor.contiguous().data_ptr()),
                static_cast<std::streamsize>(tensor.nbytes()));
    };
    for (const auto& [name, tensor] : first.state()) write(tensor);
    for (const auto& [name, tensor] : second.state()) write(tensor);
    for (const auto& tensor : own->parameters()) write(tensor.detach());
  }

  RemoteLinear first, second;
  torch::nn::Linear own;
  optim::DistributedOptimizer<Adam> optimizer;
  Checkpoint checkpoint;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// --- killed and resumed ------------------------------------------------------------------------

constexpr int kBefore = 7, kAfter = 9;

// Steps up to kBefore, a checkpoint, and on to the end; or on from the checkpoint.
SCENARIO(checkpoint_training) {
  torch::manual_seed(17 + rank);
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  Training training;
  if (const auto loaded = training.checkpoint.load()) {
    REQUIRE_THAT(std::get<int64_t>(loaded->notes.at("steps")) == kBefore);
  } else {
    for (int i = 0; i < kBefore; ++i) training.step();
    training.checkpoint.save({{"steps", int64_t{kBefore}}});
    if (std::getenv("WEFT_TEST_STOP")) {
      tell_test("saved");
      for (;;) training.step();  // until killed
    }
  }
  for (int i = 0; i < kAfter; ++i) training.step();
  training.write_down(directory() + ".result");
  return end_scene();
}

TEST(FaultsOfCheckpoints, AKilledRunGoesOnByteForByte) {
  base::TemporaryDirectory scratch("weft-checkpoints");
  const std::string straight = scratch.path() + "/straight", stopped = scratch.path() + "/stopped";
  {
    Workers workers("checkpoint_training", 3, {{"WEFT_TEST_DIRECTORY", straight}});
    ASSERT_TRUE(scene_succeeds(workers));
  }
  {
    Workers workers("checkpoint_training", 3,
                    {{"WEFT_TEST_DIRECTORY", stopped}, {"WEFT_TEST_STOP", "1"}});
    ASSERT_TRUE(workers.heard(0, "saved")) << workers.output(0);
    for (int i = 0; i < 3; ++i) workers.signal(i, SIGKILL);
  }
  {
    Workers workers("checkpoint_training", 3, {{"WEFT_TEST_DIRECTORY", stopped}});
    ASSERT_TRUE(scene_succeeds(workers));
  }

  const std::string expected = contents(straight + ".result");
  EXPECT_GT(expected.size(), 500u);
  EXPECT_EQ(contents(stopped + ".result"), expected);
}

// --- killed while it saves ---------------------------------------------------------------------

constexpr int64_t kLarge = 1 << 18;  // a megabyte each

// Every tensor of a checkpoint has the number of its save in all places.
SCENARIO(checkpoint_saving) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  nn::RemoteModule<torch::nn::LinearImpl> first("worker1", kLarge, 1);
  const torch::nn::Linear own(kLarge, 1);
  Checkpoint checkpoint(directory());
  checkpoint.add("first", first);
  checkpoint.add("own", own);
  int64_t count = 0;
  if (const auto loaded = checkpoint.load()) {
    count = std::get<int64_t>(loaded->notes.at("count"));
    nn::ModuleState state = first.state();
    for (const auto& each : own->named_parameters()) state["own." + each.key()] = each.value();
    for (const auto& [name, tensor] : state) {
      REQUIRE_THAT(tensor.eq(static_cast<double>(count)).all().item<bool>());
    }
  }
  std::printf("loaded %ld\n", count);
  std::fflush(stdout);
  for (;;) {
    ++count;
    nn::ModuleState state = first.state();
    for (auto& [name, tensor] : state) tensor.fill_(static_cast<double>(count));
    first.load_state(state);
    const c10::AutoGradMode off(false);
    for (at::Tensor& tensor : own->parameters()) tensor.fill_(static_cast<double>(count));
    std::printf("saving %ld\n", count);
    std::fflush(stdout);
    checkpoint.save({{"count", count}});
    std::printf("saved %ld\n", count);
    std::fflush(stdout);
  }
}

// The last number that a worker said after `word`; 0 if none.
int64_t last_number(const std::string& output, const std::string& word) {
  const size_t at = output.rfind(word + " ");
  return at == std::string::npos ? 0 : std::stoll(output.substr(at + word.size() + 1));
}

TEST(FaultsOfCheckpoints, KilledAtAnyMomentOfASaveTheLatestOneIsReadable) {
  base::TemporaryDirectory scratch("weft-checkpoints");
  const std::string path = scratch.path() + "/run";
  std::mt19937 random(20);
  const char* wanted = std::getenv("WEFT_KILLS");
  const int kills = (wanted ? std::atoi(wanted) : 50) / kSlowness;
  int64_t saved = 0;
  int amid = 0;
  for (int i = 0; i <= kills; ++i) {
    Workers workers("checkpoint_saving", 2, {{"WEFT_TEST_DIRECTORY", path}});
    ASSERT_TRUE(eventually([&] { return workers.output(0).find("saving ") != std::string::npos; }))
        << i << workers.output(0);
    // A save takes some milliseconds.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 15'000));
    // Both at once, or one of them a little later.
    const int first = static_cast<int>(random() % 2);
    workers.signal(first, SIGKILL);
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    workers.signal(1 - first, SIGKILL);
    workers.wait(0);
    workers.wait(1);
    const std::string output = workers.output(0);
    // Never less than what was said to be saved before.
    ASSERT_GE(last_number(output, "loaded"), saved) << output;
    saved = std::max(last_number(output, "loaded"), last_number(output, "saved"));
    if (last_number(output, "saving") > last_number(output, "saved")) ++amid;
  }
  std::cout << kills << " kills, " << amid << " in the middle of a save, " << saved << " saves\n";
  EXPECT_GT(amid, kills / 4);
}

// --- a full disk -------------------------------------------------------------------------------

// A file system of 4 MiB, if this process may have one; else files of at most 4 MiB.
bool mount_small(const std::string& path) {
  std::filesystem::create_directories(path);
  if (unshare(CLONE_NEWNS) == 0 &&
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount("tmpfs", path.c_str(), "tmpfs", 0, "size=4m") == 0) {
    return true;
  }
  const rlimit limit{4 << 20, 4 << 20};
  setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, SIG_IGN);
  return false;
}

// Of the worker that does not save itself: its part is too large.
SCENARIO(checkpoint_full_disk) {
  const bool mounted = rank == 1 && mount_small(directory());
  init_rpc(worker(rank));
  if (rank == 1) {
    std::printf(mounted ? "a small file system\n" : "small files\n");
    return serve();
  }
  {
    nn::RemoteModule<torch::nn::LinearImpl> small("worker1", 1000, 1), large("worker1", 3 << 18, 2);
    Checkpoint checkpoint(directory());
    checkpoint.add("small", small);
    checkpoint.save({{"n", int64_t{1}}});
    Checkpoint larger(directory());
    larger.add("small", small);
    larger.add("large", large);
    const Ending ending = ending_of([&] { larger.save({{"n", int64_t{2}}}); });
    std::printf("%s\n", ending.error ? ending.error->what() : "no error");
    REQUIRE_THAT(ending.error && ending.error->code() == ErrorCode::kStorageFailed);
    const std::string& message = ending.error->message();
    REQUIRE_THAT(message.find("worker1: cannot ") == 0);
    REQUIRE_THAT(message.find("No space left on device") != std::string::npos ||
                 message.find("File too large") != std::string::npos);
    // The previous one is there, and there is room again.
    REQUIRE_THAT(std::get<int64_t>(checkpoint.load()->notes.at("n")) == 1);
    checkpoint.save({{"n", int64_t{3}}});
    REQUIRE_THAT(std::get<int64_t>(checkpoint.load()->notes.at("n")) == 3);
  }
  return end_scene();
}

TEST(FaultsOfCheckpoints, AFullDiskGivesAnErrorAndLeavesThePreviousOne) {
  base::TemporaryDirectory scratch("weft-checkpoints");
  Workers workers("checkpoint_full_disk", 2, {{"WEFT_TEST_DIRECTORY", scratch.path() + "/disk"}});

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0) << workers.output(1);
}

}  // namespace
}  // namespace weft::test

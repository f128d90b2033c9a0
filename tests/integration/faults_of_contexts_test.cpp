// Distributed autograd between real processes: the same gradients, workers and drivers that are
// killed in the middle of a pass, and very many contexts.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <thread>

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "fault_scene.h"
#include "support/random_graph.h"
#include "support/scenario.h"
#include "weft/autograd.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;
using autograd::Context;

at::Tensor scalar(double number) {
  return at::full({}, number, at::kDouble).set_requires_grad(true);
}

at::Tensor weight() {
  static const at::Tensor tensor = scalar(3);
  return tensor;
}
at::Tensor weighed(at::Tensor x) { return x * weight(); }
at::Tensor weighed_through(at::Tensor x, std::string next) {
  return rpc_sync<weighed>(next, x * weight());
}

std::atomic<bool> passing{false};
bool is_passing() { return passing; }
// Its gradient takes as long as the process lives.
at::Tensor stuck(at::Tensor x) {
  at::Tensor y = x * weight();
  y.register_hook([](const at::Tensor&) {
    passing = true;
    for (;;) pause();
  });
  return y;
}
at::Tensor stuck_through(at::Tensor x, std::string next) { return rpc_sync<stuck>(next, x * 2); }

size_t contexts() { return autograd::census().contexts; }
size_t all_counts() {
  const autograd::Census census = autograd::census();
  return census.contexts + census.messages + census.gradients;
}

// --- the same gradients ------------------------------------------------------------------------

std::vector<at::Tensor> gradients_here(uint64_t program, int64_t context) {
  const auto leaves = random_graphs::leaves_of(program);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : leaves[static_cast<size_t>(get_worker_info().id)]) {
    try {
      gradients.push_back(autograd::gradient(context, leaf));
    } catch (const Error&) {
      gradients.emplace_back();  // no part in it
    }
  }
  return gradients;
}

SCENARIO(contexts_random_graphs) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const char* wanted = std::getenv("WEFT_PROCESS_GRAPHS");
  const uint64_t graphs = (wanted ? std::strtoull(wanted, nullptr, 10) : 200) / kSlowness;
  for (uint64_t i = 0; i < graphs; ++i) {
    const uint64_t seed = random_graphs::kDrivers * i;  // this worker drives
    const auto program = random_graphs::make_program(seed);
    const auto expected = random_graphs::make_leaves(seed);
    random_graphs::run_locally(program, expected);
    Context context;
    const auto results = random_graphs::run_spread(current_agent(), program);
    context.backward(random_graphs::losses_of(
        program, [&results](uint32_t root) { return random_graphs::tensor_of(results.at(root)); }));
    for (int other = 0; other < world_size; ++other) {
      const auto got = rpc_sync<gradients_here>(other, seed, context.id());
      for (size_t leaf = 0; leaf < got.size(); ++leaf) {
        const std::string wrong =
            random_graphs::difference(expected[static_cast<size_t>(other)][leaf].grad(), got[leaf]);
        if (!wrong.empty()) {
          std::printf("seed %lu, worker%d, leaf %zu: %s\n", seed, other, leaf, wrong.c_str());
        }
        REQUIRE_THAT(wrong.empty());
      }
    }
  }
  return end_scene();
}

TEST(ContextsOfProcesses, RandomGraphsGiveTheGradientsOfALocalRun) {
  Workers workers("contexts_random_graphs", random_graphs::kWorkers);
  EXPECT_TRUE(scene_succeeds(workers));
}

// --- somebody dies -----------------------------------------------------------------------------

SCENARIO(faults_participant_is_killed) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const at::Tensor x = scalar(2);
  {
    Context context;
    const at::Tensor loss = rpc_sync<stuck_through>("worker1", x, "worker2");
    Clock::time_point killed;
    std::thread killing([&] {
      REQUIRE_THAT(eventually([] { return rpc_sync<is_passing>("worker2"); }));
      const pid_t victim = rpc_sync<process_id>("worker2");
      killed = Clock::now();
      REQUIRE_THAT(kill(victim, SIGKILL) == 0);
    });
    const Ending ending = ending_of([&] { context.backward({loss}, {.timeout = 60s}); });
    const auto ended = Clock::now();
    killing.join();
    REQUIRE_THAT(ended > killed &&
                 ended - killed - stalled_between(killed, ended) < 1s * kSlowness);
    REQUIRE_THAT(ending.error && ending.error->code() == ErrorCode::kContextAborted);
    std::printf("%s\n", ending.error->what());
    REQUIRE_THAT(ending.error->message().find("worker2") != std::string::npos);
    // Whoever is left knows, and its part is gone.
    const auto freed = [] {
      const c10::AutoGradMode unrecorded(false);
      return rpc_sync<all_counts>("worker1") == 1;
    };
    REQUIRE_THAT(happens_within(1s, freed));
    REQUIRE_THAT(ending_of([&] { context.gradient(x); }).error->code() ==
                 ErrorCode::kContextAborted);
    REQUIRE_THAT(ending_of([&] { rpc_sync<weighed>("worker1", x); }).error->code() ==
                 ErrorCode::kContextAborted);
  }
  // The rest goes on.
  Context context;
  context.backward({rpc_sync<weighed>("worker1", x)});
  REQUIRE_THAT(context.gradient(x).item<double>() == 3);
  shutdown(Shutdown::kNow);
  return 0;
}

TEST(FaultsOfContexts, EveryPassWithAKilledParticipantIsGivenUp) {
  Workers workers("faults_participant_is_killed", 3);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
  std::cout << workers.output(0);
}

SCENARIO(faults_driver_is_killed) {
  init_rpc(worker(rank));
  if (rank == 0) {
    Context context;
    const at::Tensor loss = rpc_sync<stuck_through>("worker1", scalar(2), "worker2");
    context.backward({loss});
    return 1;  // never
  }
  if (rank == 1) {
    REQUIRE_THAT(eventually([] { return rpc_sync<is_passing>("worker2"); }));
    tell_test("passing");
    wait_for_test();  // which has killed the driver
    const auto killed = Clock::now();
    REQUIRE_THAT(contexts() == 1);
    REQUIRE_THAT(eventually([] { return all_counts() == 0; }, 15s));
    REQUIRE_THAT(eventually([] { return rpc_sync<contexts>("worker2") == 0; }, 15s));
    const double seconds = std::chrono::duration<double>(Clock::now() - killed).count();
    std::printf("free after %.1f s\n", seconds);
    std::fflush(stdout);
    REQUIRE_THAT(seconds < 15);
    // And they serve on.
    REQUIRE_THAT(rpc_sync<echo>("worker2", 5) == 5);
    tell_test("done");
    for (;;) pause();
  }
  for (;;) pause();
}

TEST(FaultsOfContexts, ParticipantsForgetAKilledDriver) {
  Workers workers("faults_driver_is_killed", 3);
  ASSERT_TRUE(workers.heard(1, "passing")) << workers.output(1);
  workers.signal(0, SIGKILL);
  workers.release(1);

  EXPECT_TRUE(workers.heard(1, "done")) << workers.output(1);
  std::cout << workers.output(1);
}

// The error of a step over two other workers; if it has none its gradient is right.
std::optional<ErrorCode> step_over_both(const at::Tensor& x) {
  try {
    Context context;
    context.backward({rpc_sync<weighed_through>("worker1", x, "worker2")}, {.timeout = 10s});
    REQUIRE_THAT(context.gradient(x).item<double>() == 9);
    return std::nullopt;
  } catch (const Error& error) {
    return error.code();
  }
}

SCENARIO(faults_broken_connections_in_a_pass) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const at::Tensor x = scalar(2);
  for (int i = 0; i < 20; ++i) {
    std::thread breaking([] {
      try {
        rpc_sync<break_connections>("worker1");
      } catch (const Error&) {
        // Among them was that of this call.
      }
    });
    const Stopwatch time;
    // Forward calls on a connection that breaks say that they may have run.
    if (const auto error = step_over_both(x)) {
      REQUIRE_THAT(error == ErrorCode::kContextAborted || error == ErrorCode::kOutcomeUnknown ||
                   error == ErrorCode::kUnavailable || error == ErrorCode::kRemoteError);
    }
    REQUIRE_THAT(time.read() < 5s * kSlowness);
    breaking.join();
  }
  REQUIRE_THAT(eventually([&] { return !step_over_both(x); }));
  return end_scene();
}

TEST(FaultsOfContexts, BrokenConnectionsGiveThePassUpOrDoNothing) {
  Workers workers("faults_broken_connections_in_a_pass", 3);
  EXPECT_TRUE(scene_succeeds(workers));
}

// --- very many -------------------------------------------------------------------------------

SCENARIO(faults_context_churn) {
  const char* wanted = std::getenv("WEFT_CONTEXTS");
  const int64_t count = (wanted ? std::atoll(wanted) : 10'000) / kSlowness;
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const at::Tensor x = scalar(2);
  const auto one = [&x] {
    Context context;
    context.backward({rpc_sync<weighed_through>("worker1", x, "worker2")});
    REQUIRE_THAT(context.gradient(x).item<double>() == 9);
  };
  for (int64_t i = 0; i < count / 10; ++i) one();
  const auto everybody = [](size_t (*counted)()) {
    return std::vector<size_t>{
        counted(),
        counted == &memory_now ? rpc_sync<memory_now>("worker1") : rpc_sync<all_counts>("worker1"),
        counted == &memory_now ? rpc_sync<memory_now>("worker2") : rpc_sync<all_counts>("worker2")};
  };
  const std::vector<size_t> before = everybody(&memory_now);
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) one();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  REQUIRE_THAT(eventually([&] { return everybody(&all_counts) == std::vector<size_t>{0, 0, 0}; }));
  const std::vector<size_t> after = everybody(&memory_now);
  for (size_t i = 0; i < after.size(); ++i) {
    std::printf("worker%zu: %ld KiB more\n", i,
                (static_cast<long>(after[i]) - static_cast<long>(before[i])) / 1024);
    REQUIRE_THAT(!kMemoryShows || after[i] < before[i] + (size_t{4} << 20));
  }
  std::printf("%ld contexts, %.1f us each\n", count, 1e6 * seconds / static_cast<double>(count));
  return end_scene();
}

TEST(FaultsOfContexts, TenThousandLeaveNothing) {
  Workers workers("faults_context_churn", 3);

  EXPECT_EQ(workers.wait(0, std::chrono::minutes(5)), 0) << workers.output(0);
  std::cout << workers.output(0);
}

}  // namespace
}  // namespace weft::test

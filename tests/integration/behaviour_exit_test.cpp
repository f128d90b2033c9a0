// Processes that end, or multiply, in the middle of Weft's work: exit() on any thread, and fork().
// SPDX-License-Identifier: BSD-3-Clause
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <weft/rpc.h>

#include "support/scenario.h"

namespace weft::behaviour_exit {

using namespace std::chrono_literals;
using test::eventually;
using test::Workers;

std::string name_of(int rank) { return "worker" + std::to_string(rank); }
void end_process(int status) { std::exit(status); }
int64_t twice(int64_t n) { return 2 * n; }
void wait_here() {
  eventually([] { return current_call::cancelled(); }, 60s);
}

// --- exit() ------------------------------------------------------------------------------------

SCENARIO(exit_in_handler) {
  init_rpc(name_of(rank));
  if (rank == 0) {
    test::wait_for_test();  // by now worker1 is in shutdown()
    rpc_async<end_process>(1, 7);
    const auto lost = shutdown().lost_workers;
    return lost == std::vector<std::string>{"worker1"} ? 0 : 1;
  }
  test::tell_test("in shutdown");
  shutdown();
  return 1;
}

TEST(BehaviourOfExit, InAHandlerWhileMainShutsDownEndsWithThatStatus) {
  for (int round = 0; round < 5; ++round) {
    Workers workers("exit_in_handler", 2);
    ASSERT_TRUE(workers.heard(1, "in shutdown"));
    workers.release(0);

    EXPECT_EQ(workers.wait(1), 7) << workers.output(1);
    EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
  }
}

SCENARIO(exit_on_a_thread) {
  init_rpc(name_of(rank));
  if (rank == 1) {
    test::wait_for_test();
    return 0;
  }
  std::thread([] {
    test::wait_for_test();
    std::exit(9);
  }).detach();
  test::tell_test("waiting");
  if (std::getenv("IN_CALL")) {
    rpc_sync<wait_here>({1, 0s});
  } else {
    shutdown();
  }
  return 1;
}

TEST(BehaviourOfExit, OnAnotherThreadWhileMainShutsDownEndsWithThatStatus) {
  for (int round = 0; round < 5; ++round) {
    Workers workers("exit_on_a_thread", 2);
    ASSERT_TRUE(workers.heard(0, "waiting"));
    workers.release(0);

    EXPECT_EQ(workers.wait(0), 9) << workers.output(0);
  }
}

TEST(BehaviourOfExit, OnAnotherThreadWhileMainWaitsForACallEndsWithThatStatus) {
  for (int round = 0; round < 5; ++round) {
    Workers workers("exit_on_a_thread", 2, {{"IN_CALL", "1"}});
    ASSERT_TRUE(workers.heard(0, "waiting"));
    workers.release(0);

    EXPECT_EQ(workers.wait(0), 9) << workers.output(0);
  }
}

// --- fork() ------------------------------------------------------------------------------------

// How a child that runs `body` and then exits ends; 128 + SIGKILL if it hangs.
template <typename F>
int status_of_child(const F& body) {
  const pid_t child = ::fork();
  if (child == 0) std::exit(body());
  int status = 0;
  if (!eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; })) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

ErrorCode code_of_call(Agent* agent) {
  try {
    (agent ? *agent : current_agent()).sync<twice>(1, 4);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode{};
}

SCENARIO(fork_and_go_on) {
  init_rpc(name_of(rank));
  Agent* const agent = &current_agent();
  barrier();
  if (rank == 0) {
    REQUIRE_THAT(rpc_sync<twice>(1, 1) == 2);
    const int status = status_of_child([agent] {
      // The process has no default agent, and the parent's refuses.
      if (code_of_call(nullptr) != ErrorCode::kNotInitialized) return 2;
      if (code_of_call(agent) != ErrorCode::kNotInitialized) return 3;
      shutdown();
      return 5;
    });
    if (status != 5) std::fprintf(stderr, "the child ended with %d\n", status);
    REQUIRE_THAT(status == 5);
    REQUIRE_THAT(rpc_sync<twice>(1, 2) == 4);
    for (const PeerStats& peer : debug_info().peers) REQUIRE_THAT(peer.failed == 0);
  }
  barrier();
  REQUIRE_THAT(rpc_sync<twice>((rank + 1) % 2, 3) == 6);
  REQUIRE_THAT(shutdown().lost_workers.empty());
  return 0;
}

TEST(BehaviourOfFork, TheChildHasNoAgentAndTheParentGoesOn) {
  Workers workers("fork_and_go_on", 2);
  EXPECT_TRUE(workers.all_succeed());
}

SCENARIO(fork_and_join) {
  init_rpc(name_of(rank));
  const std::string place = std::string("file://") + std::getenv("CHILDS_FILE");
  const int status = status_of_child([&] {
    Options alone;
    alone.rank = 0;
    alone.world_size = 1;
    alone.init_method = place;
    init_rpc("child", alone);
    const bool works = rpc_sync<twice>("child", 21) == 42;
    shutdown();
    return works ? 6 : 1;
  });
  REQUIRE_THAT(status == 6);
  REQUIRE_THAT(rpc_sync<twice>(name_of(rank), 1) == 2);
  shutdown();
  return 0;
}

TEST(BehaviourOfFork, TheChildCanBecomeAWorkerOfItsOwn) {
  const base::TemporaryDirectory directory{"weft-fork"};
  Workers workers("fork_and_join", 1, {{"CHILDS_FILE", directory.path() + "/meeting"}});
  EXPECT_TRUE(workers.all_succeed());
}

SCENARIO(fork_and_die) {
  init_rpc(name_of(rank));
  if (rank == 0) {
    rpc_sync<twice>(1, 1);
    test::tell_test("ready");
    test::wait_for_test();
    if (::fork() == 0) {
      ::alarm(60);
      ::pause();
      ::_exit(0);
    }
    ::kill(::getpid(), SIGKILL);
  }
  const Future<void> call = rpc_async<wait_here>({0, 0s});
  test::tell_test("calling");
  try {
    call.wait();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kOutcomeUnknown ? 0 : 1;
  }
  return 1;
}

// The heartbeat would take half a minute: the end of the connection tells at once.
TEST(BehaviourOfFork, TheChildDoesNotKeepTheParentsConnectionsOpen) {
  Workers workers("fork_and_die", 2);
  ASSERT_TRUE(workers.heard(1, "calling"));
  ASSERT_TRUE(workers.heard(0, "ready"));
  workers.release(0);

  EXPECT_EQ(workers.wait(1, 20s), 0) << workers.output(1);
}

}  // namespace weft::behaviour_exit

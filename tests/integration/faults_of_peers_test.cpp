// Peers that are killed, frozen or cut off while others call them.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>

#include <thread>

#include <gtest/gtest.h>

#include "fault_scene.h"

namespace weft::test {
namespace {

constexpr auto kNoticed = 200ms;  // a death
constexpr auto kReconnected = 1s;

using Clock = std::chrono::steady_clock;

int end_without_the_dead() {
  shutdown(Shutdown::kNow);
  return 0;
}

SCENARIO(faults_killed_before_the_call) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  tell_test("connected to worker1 alone");
  wait_for_test();

  for (const char* name : {"worker1", "worker2"}) {
    const Expected unavailable{.code = ErrorCode::kUnavailable,
                               .may_have_run = false,
                               .within = kNoticed,
                               .names = {name, "echo"}};
    for (int attempt = 0; attempt < 3; ++attempt) {
      require_ending(ending_of([name] { rpc_sync<echo>(name, 1); }), unavailable);
      require_ending(ending_of([name] { rpc_async<echo>(name, 1).wait(); }), unavailable);
    }
  }
  return end_without_the_dead();
}

TEST(FaultsOfPeers, KilledBeforeTheCallIsUnavailable) {
  Workers workers("faults_killed_before_the_call", 3);
  ASSERT_TRUE(workers.heard(0, "connected to worker1 alone"));

  for (const int rank : {1, 2}) {
    workers.signal(rank, SIGKILL);
    ASSERT_EQ(workers.wait(rank), 128 + SIGKILL);
  }
  workers.release(0);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
}

SCENARIO(faults_killed_after_sending) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const pid_t victim = rpc_sync<process_id>("worker1");
  const Future<int64_t> waited = rpc_async<hold>({"worker1", 0s}, 1);
  const Future<int64_t> looked_at = rpc_async<hold>("worker1", 2);
  const Future<int64_t> continued =
      rpc_async<hold>("worker1", 3).then([](int64_t value) { return value + 1; });
  REQUIRE_THAT(eventually([] { return rpc_sync<held>("worker1") == 3; }));

  kill(victim, SIGKILL);

  const Expected unknown{.code = ErrorCode::kOutcomeUnknown,
                         .may_have_run = true,
                         .within = kNoticed,
                         .names = {"worker1", "hold"}};
  watch_stalls();
  const auto start = Clock::now();
  std::thread waiter([&] { require_ending(ending_of([&] { waited.wait(); }), unknown); });
  REQUIRE_THAT(eventually([&] { return looked_at.ready() && continued.ready(); }));
  for (const auto* future : {&looked_at, &continued}) {
    require_ending(ending_since(start, future->error()), unknown);
  }
  waiter.join();
  require_success(ending_of([] { rpc_sync<echo>("worker2", 1); }), kNoticed);
  return end_without_the_dead();
}

TEST(FaultsOfPeers, KilledAfterSendingLeavesTheOutcomeUnknown) {
  Workers workers("faults_killed_after_sending", 3);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
}

SCENARIO(faults_frozen) {
  init_rpc(worker(rank), impatient());
  if (rank != 0) return serve();
  const pid_t victim = rpc_sync<process_id>("worker1");
  rpc_sync<echo>("worker2", 1);
  const Future<int64_t> running = rpc_async<hold>("worker1", 1);
  REQUIRE_THAT(eventually([] { return rpc_sync<held>("worker1") == 1; }));

  REQUIRE_THAT(freeze(victim));
  watch_stalls();
  const auto start = Clock::now();

  require_ending(ending_of([] {
                   rpc_sync<echo>({"worker1", 100ms}, 1);
                 }),
                 {.code = ErrorCode::kTimeout,
                  .may_have_run = true,
                  .after = 100ms,
                  .within = 300ms,
                  .names = {"worker1", "echo"}});
  require_success(ending_of([] { rpc_sync<echo>("worker2", 1); }), kNoticed);
  const Expected lost{.code = ErrorCode::kPeerLost,
                      .may_have_run = true,
                      .within = 800ms,
                      .names = {"worker1", "was sent"}};
  require_ending(ending_of([] { rpc_sync<echo>({"worker1", 0s}, 1); }), lost);
  REQUIRE_THAT(happens_within(kNoticed, [&] { return running.ready(); }));
  require_ending(ending_since(start, running.error()), lost);

  thaw(victim);
  require_success(ending_of([] { rpc_sync<echo>("worker1", 1); }), kReconnected);
  rpc_sync<let_go>("worker1");
  return end_scene();
}

TEST(FaultsOfPeers, FrozenIsLostByHeartbeatAndWorksAgainWhenItGoesOn) {
  Workers workers("faults_frozen", 3);

  EXPECT_TRUE(scene_succeeds(workers));
}

// A call of worker1's own, to worker0.
std::atomic<bool> own_call_succeeded{false};
int64_t call_and_wait(int64_t value) {
  std::thread([value] {
    const Ending ending = ending_of([value] { rpc_sync<hold>({"worker0", 0s}, value); });
    if (ending.error) std::fprintf(stderr, "own call: %s\n", ending.error->what());
    own_call_succeeded = !ending.error;
  }).detach();
  return hold(value);
}
bool call_succeeded() { return own_call_succeeded; }

SCENARIO(faults_frozen_before_connecting) {
  init_rpc(worker(rank), impatient());
  if (rank != 0) {
    tell_test("ready");
    return serve();
  }
  wait_for_test();  // worker1 is frozen

  const Ending ending = ending_of([] { rpc_sync<swallow>({"worker1", 200ms}, at::ones(1)); });
  require_ending(ending, {.code = ErrorCode::kTimeout,
                          .may_have_run = ending.error && ending.error->may_have_run(),
                          .after = 200ms,
                          .within = 400ms,
                          .names = {"worker1", "swallow"}});

  tell_test("thaw");
  // Whatever was still to be sent is served before this.
  int64_t ran = -1;
  require_success(ending_of([&ran] { ran = rpc_sync<swallowed>("worker1"); }), kReconnected);
  REQUIRE_THAT(ran == 0 || ending.error->may_have_run());
  return end_scene();
}

SCENARIO(faults_frozen_caller) {
  init_rpc(worker(rank), impatient());
  if (rank != 0) return serve();
  const Future<int64_t> calling = rpc_async<call_and_wait>({"worker1", 0s}, 7);
  REQUIRE_THAT(eventually([] { return held() == 1; }));
  const pid_t victim = rpc_sync<process_id>("worker1");

  REQUIRE_THAT(freeze(victim));
  REQUIRE_THAT(eventually([&] { return calling.ready(); }));  // by then it was frozen too long
  thaw(victim);

  REQUIRE_THAT(rpc_sync<echo>("worker1", 1) == 1);
  let_go();
  REQUIRE_THAT(eventually([] { return rpc_sync<call_succeeded>("worker1"); }));
  rpc_sync<let_go>("worker1");
  return end_scene();
}

TEST(FaultsOfPeers, FrozenCallerDoesNotBlameItsPeersAfterwards) {
  Workers workers("faults_frozen_caller", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

TEST(FaultsOfPeers, TimeoutWhileConnectingToTheFrozenIsHonest) {
  Workers workers("faults_frozen_before_connecting", 2);
  ASSERT_TRUE(workers.heard(1, "ready"));
  ASSERT_TRUE(freeze(workers.pid(1)));
  workers.release(0);

  ASSERT_TRUE(workers.heard(0, "thaw"));
  thaw(workers.pid(1));

  EXPECT_TRUE(scene_succeeds(workers));
}

// One call held by the handler while `cut` breaks the connection it came on.
template <typename Cut>
void require_recovery(int64_t round, const Cut& cut) {
  const Future<int64_t> running = rpc_async<hold>("worker1", round);
  REQUIRE_THAT(eventually([] { return rpc_sync<held>("worker1") == 1; }));

  cut();

  require_ending(ending_of([&] { running.wait(); }), {.code = ErrorCode::kOutcomeUnknown,
                                                      .may_have_run = true,
                                                      .within = kNoticed,
                                                      .names = {"worker1", "hold"}});
  require_success(ending_of([] { rpc_sync<echo>("worker1", 1); }), kReconnected);
  rpc_sync<let_go>("worker1");
  REQUIRE_THAT(eventually([] { return rpc_sync<held>("worker1") == 0; }));
}

void break_connections_of_callee() { break_connections(); }

// Memory cannot break: what was written is read, also when the socket beside it is shut down.
bool through_memory() {
  rpc_sync<echo>("worker1", 1);
  return debug_info().peers.at(0).transport == "shm";
}

SCENARIO(faults_connection_broken) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const bool may_be_answered = through_memory();
  for (int64_t round = 0; round < 20; ++round) {
    require_recovery(round, [] { break_connections(); });
    require_recovery(round, [may_be_answered] {
      const Ending ending = ending_of([] { rpc_sync<break_connections_of_callee>("worker1"); });
      REQUIRE_THAT(ending.error ? ending.error->code() == ErrorCode::kOutcomeUnknown
                                : may_be_answered);
    });
  }
  return end_scene();
}

TEST(FaultsOfPeers, BrokenConnectionIsMadeAnew) {
  Workers workers("faults_connection_broken", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(faults_idle_connection_broken) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const bool needs_a_look = through_memory();
  for (int64_t round = 0; round < 200; ++round) {
    rpc_sync<echo>("worker1", round);
    break_connections();
    if (needs_a_look) std::this_thread::sleep_for(2ms);  // then the next caller looks at the socket
    require_success(ending_of([] { rpc_sync<echo>("worker1", 1); }), kReconnected);
  }
  return end_scene();
}

TEST(FaultsOfPeers, NobodyNoticesThatAnIdleConnectionBroke) {
  Workers workers("faults_idle_connection_broken", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

SCENARIO(faults_broken_under_load) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  const at::Tensor large = at::ones({256 * 1024});
  std::atomic<bool> done{false};
  std::atomic<int64_t> succeeded{0}, unknown{0}, unavailable{0}, others{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      while (!done) {
        const Ending ending = ending_of([&] { rpc_sync<swallow>("worker1", large); });
        ++(!ending.error                                        ? succeeded
           : ending.error->code() == ErrorCode::kOutcomeUnknown ? unknown
           : ending.error->code() == ErrorCode::kUnavailable    ? unavailable
                                                                : others);
      }
    });
  }

  for (int round = 0; round < 50; ++round) {
    const int64_t before = succeeded;
    break_connections();
    REQUIRE_THAT(happens_within(kReconnected, [&] { return succeeded > before + 8; }));
  }

  done = true;
  for (auto& caller : callers) caller.join();
  const int64_t ran = rpc_sync<swallowed>("worker1");
  std::printf("succeeded %ld, unknown %ld, unavailable %ld, others %ld; ran %ld\n",
              succeeded.load(), unknown.load(), unavailable.load(), others.load(), ran);
  REQUIRE_THAT(others == 0);
  REQUIRE_THAT(succeeded <= ran && ran <= succeeded + unknown);
  return end_scene();
}

TEST(FaultsOfPeers, ConnectionBrokenUnderLoadNeverLiesAboutWhatRan) {
  Workers workers("faults_broken_under_load", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

}  // namespace
}  // namespace weft::test

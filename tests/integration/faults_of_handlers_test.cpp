// Functions that throw, never return, come late or call each other without end.
// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <thread>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "fault_scene.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRoundTrip = 200ms;

struct Odd {
  int value;
};
struct Unlucky : std::out_of_range {
  Unlucky() : std::out_of_range("13 is out of luck") {}
};

template <typename Thrown>
int64_t throw_value(Thrown thrown) {
  throw thrown;
}
int64_t throw_runtime_error() { return throw_value(std::runtime_error("no luck: 13")); }
int64_t throw_derived() { return throw_value(Unlucky()); }
int64_t throw_by_torch() { TORCH_CHECK(false, "no luck: 13"); }
int64_t throw_int() { return throw_value(13); }
int64_t throw_struct() { return throw_value(Odd{13}); }
int64_t throw_text() { return throw_value<const char*>("13"); }
void throw_and_return_nothing() { throw_int(); }
Future<int64_t> throw_later() {
  Promise<int64_t> promise;
  promise.set_exception(std::make_exception_ptr(Odd{13}));
  return promise.future();
}
// Not able to be thrown through: the error's own text has an odd byte.
int64_t throw_bytes() { return throw_value(std::runtime_error(std::string("\x80\xff\n\x01", 4))); }

template <auto F>
void require_remote_error(const std::string& type, const std::string& text) {
  const Ending ending = ending_of([] { rpc_sync<F>("worker1"); });
  require_ending(ending, {.code = ErrorCode::kRemoteError,
                          .may_have_run = true,
                          .within = kRoundTrip,
                          .names = {"worker1", type, text}});
  REQUIRE_THAT(ending.error->worker() == "worker1");
  REQUIRE_THAT(ending.error->remote_type().find(type) != std::string::npos);
  REQUIRE_THAT(ending.error->remote_text().find(text) != std::string::npos);
}

SCENARIO(faults_throwing) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  for (int round = 0; round < 100; ++round) {
    require_remote_error<throw_runtime_error>("std::runtime_error", "no luck: 13");
    require_remote_error<throw_derived>("Unlucky", "13 is out of luck");
    require_remote_error<throw_by_torch>("c10::Error", "no luck: 13");
    require_remote_error<throw_int>("int", "");
    require_remote_error<throw_struct>("Odd", "");
    require_remote_error<throw_text>("char const*", "");
    require_remote_error<throw_and_return_nothing>("int", "");
    require_remote_error<throw_later>("Odd", "");
    require_remote_error<throw_bytes>("std::runtime_error", "\x80\xff\n\x01");
    REQUIRE_THAT(rpc_sync<echo>("worker1", round) == round);
  }
  return end_scene();
}

TEST(FaultsOfHandlers, WhatIsThrownIsNamedWithItsTypeTextAndWorker) {
  Workers workers("faults_throwing", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

// As hold(), but keeps a core busy.
std::atomic<bool> spinning{false};
void spin_on() {
  spinning = true;
  while (spinning) {
  }
}
void stop_spinning() { spinning = false; }

constexpr int64_t kStuck = 5;

SCENARIO(faults_never_returning) {
  Options options;
  options.handler_threads = static_cast<size_t>(std::atoi(std::getenv("HANDLER_THREADS")));
  init_rpc(worker(rank), options);
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);
  std::vector<std::thread> callers;
  const Expected timeout{.code = ErrorCode::kTimeout,
                         .may_have_run = true,
                         .after = 1000ms,
                         .within = 1200ms,
                         .names = {"worker1"}};
  const auto start = Clock::now();
  callers.emplace_back([&timeout] {
    require_ending(ending_of([] { rpc_sync<spin_on>({"worker1", 1000ms}); }), timeout);
  });
  for (int64_t i = 0; i < kStuck; ++i) {
    callers.emplace_back([&timeout] {
      require_ending(ending_of([] { rpc_sync<hold>({"worker1", 1000ms}, 1); }), timeout);
    });
  }
  REQUIRE_THAT(happens_within(1s, [] { return rpc_sync<held>("worker1") == kStuck; }));
  std::printf("all are stuck after %.1f ms\n",
              std::chrono::duration<double>(Clock::now() - start).count() * 1e3);

  // Served while callers wait for the stuck ones, and after they gave up.
  std::chrono::nanoseconds longest{};
  while (Clock::now() < start + 1500ms) {
    const Ending ending = ending_of([] { rpc_sync<echo>("worker1", 1); });
    require_success(ending, kRoundTrip);
    longest = std::max(longest, ending.took);
  }
  std::printf("longest call meanwhile %.1f ms\n", 1e-6 * static_cast<double>(longest.count()));
  for (auto& caller : callers) caller.join();

  rpc_sync<stop_spinning>("worker1");
  rpc_sync<let_go>("worker1");
  REQUIRE_THAT(eventually([] { return debug_info().counters.at("replies.late") == kStuck + 1; }));
  return end_scene();
}

class FaultsOfStuckHandlers : public testing::TestWithParam<const char*> {};

TEST_P(FaultsOfStuckHandlers, CallersTimeOutAndOthersAreServed) {
  Workers workers("faults_never_returning", 2, {{"HANDLER_THREADS", GetParam()}});

  EXPECT_TRUE(scene_succeeds(workers));
}

INSTANTIATE_TEST_SUITE_P(HandlerThreads, FaultsOfStuckHandlers, testing::Values("1", "2", "16"));

SCENARIO(faults_late_reply) {
  init_rpc(worker(rank));
  if (rank != 0) return serve();
  rpc_sync<echo>("worker1", 1);

  require_ending(ending_of([] {
                   rpc_sync<hold>({"worker1", 50ms}, 1);
                 }),
                 {.code = ErrorCode::kTimeout,
                  .may_have_run = true,
                  .after = 50ms,
                  .within = 250ms,
                  .names = {"worker1", "hold"}});
  REQUIRE_THAT(debug_info().counters.at("replies.late") == 0);
  rpc_sync<let_go>("worker1");

  REQUIRE_THAT(eventually([] { return debug_info().counters.at("replies.late") == 1; }));
  REQUIRE_THAT(debug_info().counters.at("calls.timed_out") == 1);
  REQUIRE_THAT(rpc_sync<echo>("worker1", 2) == 2);
  return end_scene();
}

TEST(FaultsOfHandlers, LateReplyIsDroppedAndCounted) {
  Workers workers("faults_late_reply", 2);

  EXPECT_TRUE(scene_succeeds(workers));
}

// Calls to and fro between worker0 and worker1; returns how deep it went.
int64_t descend(int64_t levels) {
  if (levels == 0) return 0;
  return 1 + rpc_sync<descend>(1 - get_worker_info().id, levels - 1);
}

SCENARIO(faults_nested) {
  Options options;
  options.handler_threads = 2;
  init_rpc(worker(rank), options);
  if (rank != 0) return serve();
  const auto start = Clock::now();
  std::vector<Future<int64_t>> chains;
  for (int i = 0; i < 1000; ++i) chains.push_back(rpc_async<descend>("worker1", 2));

  for (const int64_t depth : wait_all(chains)) REQUIRE_THAT(depth == 2);
  std::printf("1,000 chains of 3 calls took %.1f ms\n",
              std::chrono::duration<double>(Clock::now() - start).count() * 1e3);
  return end_scene();
}

TEST(FaultsOfHandlers, ThousandNestedCallsCompleteWithTwoHandlerThreads) {
  Workers workers("faults_nested", 2);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0);
}

// Whoever is refused says with what; the rest pass it on.
std::string run_away() {
  try {
    return rpc_sync<run_away>(1 - get_worker_info().id);
  } catch (const Error& error) {
    return error.what();
  }
}
int64_t run_away_without_catching() {
  return rpc_sync<run_away_without_catching>(1 - get_worker_info().id);
}

SCENARIO(faults_runaway) {
  Options options;
  options.handler_threads = 2;
  options.max_call_depth = 1000 / kSlowness;  // a thread each, and a sanitizer has few
  init_rpc(worker(rank), options);
  if (rank != 0) return serve();

  const std::string refusal = rpc_sync<run_away>("worker1");
  REQUIRE_THAT(refusal.find("kLimitExceeded") != std::string::npos);
  REQUIRE_THAT(refusal.find("run_away") != std::string::npos);
  REQUIRE_THAT(refusal.find(std::to_string(options.max_call_depth)) != std::string::npos);

  const Ending ending = ending_of([] { rpc_sync<run_away_without_catching>("worker1"); });
  REQUIRE_THAT(ending.error.has_value());
  std::printf("%zu bytes: %s\n", ending.error->message().size(),
              ending.error->message().substr(0, 300).c_str());
  REQUIRE_THAT(ending.error->message().find("kLimitExceeded") != std::string::npos);
  REQUIRE_THAT(rpc_sync<echo>("worker1", 1) == 1);
  return end_scene();
}

TEST(FaultsOfHandlers, RunawayRecursionMeetsTheLimit) {
  Workers workers("faults_runaway", 2);

  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0);
}

}  // namespace
}  // namespace weft::test

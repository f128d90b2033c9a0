// What users rely on of calls between real processes, through the free functions.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include <gtest/gtest.h>
#include <weft/rpc.h>

#include "support/scenario.h"

namespace weft::behaviour_processes {

using namespace std::chrono_literals;
using test::eventually;
using test::Workers;

std::string name_of(int rank) { return "worker" + std::to_string(rank); }

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a + b; }
int64_t twice(int64_t n) { return 2 * n; }
int64_t process() { return getpid(); }
int64_t refuse(int64_t) { throw std::domain_error("not \"this\"\none"); }
at::Tensor heavy(at::Tensor tensor) {
  for (int i = 1; i < 100; ++i) tensor = tensor * i / i;
  return tensor;
}

template <typename F>
Error error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  REQUIRE_THAT(!"it did not throw");
  std::abort();
}
bool says(const Error& error, const std::string& text) {
  const bool found = std::string(error.what()).find(text) != std::string::npos;
  if (!found) std::fprintf(stderr, "instead: %s\n", error.what());
  return found;
}

// --- 1, 12, 16 -----------------------------------------------------------------------------------

SCENARIO(behaviour_calls) {
  init_rpc(name_of(rank));
  const at::Tensor x = at::full({2, 2}, 1.0 + rank);
  for (int to = 0; to < world_size; ++to) {
    REQUIRE_THAT(at::equal(rpc_sync<add>(to, x, x), x + x));
    REQUIRE_THAT(at::equal(rpc_sync<add>(name_of(to), x, x), x + x));
    REQUIRE_THAT(at::equal(rpc_async<add>(get_worker_info(to), x, x).wait(), x + x));
    REQUIRE_THAT((rpc_sync<process>(to) == getpid()) == (to == rank));
  }
  const std::string peer = name_of((rank + 1) % world_size);
  const Error error = error_of([&] { rpc_sync<refuse>(peer, 1); });
  REQUIRE_THAT(error.worker() == peer && error.remote_type() == "std::domain_error" &&
               error.remote_text() == "not \"this\"\none");

  std::vector<Future<int64_t>> light;
  for (int64_t i = 0; i < 1000; ++i) light.push_back(rpc_async<twice>(peer, i));
  std::vector<Future<at::Tensor>> many;
  for (int i = 0; i < 20; ++i) many.push_back(rpc_async<heavy>(peer, at::ones({100, 100})));
  REQUIRE_THAT(wait_all(light)[999] == 1998);
  for (const at::Tensor& result : wait_all(many))
    REQUIRE_THAT(result.allclose(at::ones({100, 100})));

  REQUIRE_THAT(eventually([] { return debug_info().counters.at("calls.outstanding") == 0; }));
  REQUIRE_THAT(debug_info().counters.at("calls.pending") == 0);
  REQUIRE_THAT(shutdown().lost_workers.empty());
  return 0;
}

TEST(Behaviour01_CallsByNameRankInfoAndToSelf, BetweenProcesses) {
  Workers workers("behaviour_calls", 2);
  EXPECT_TRUE(workers.all_succeed());
}

// --- 15 ----------------------------------------------------------------------------------------

void die() { _exit(7); }
void crash() {
  signal(SIGSEGV, SIG_DFL);  // a sanitizer would end the process in its own way
  raise(SIGSEGV);
}
void hang() {
  test::tell_test("hanging");
  while (!current_call::cancelled()) usleep(1000);
}

SCENARIO(behaviour_callee_dies) {
  init_rpc(name_of(rank));
  barrier();
  if (rank == 0) {
    const auto bounded = [](const auto& call) {
      const auto began = std::chrono::steady_clock::now();
      const Error error = error_of(call);
      REQUIRE_THAT(std::chrono::steady_clock::now() - began < 2s);
      return error;
    };
    const Future<void> at_one = rpc_async<hang>(1);
    const Future<void> at_two = rpc_async<hang>({2, 0s});  // as long as the peer lives
    REQUIRE_THAT(bounded([] { rpc_sync<die>(1); }).code() == ErrorCode::kOutcomeUnknown);
    REQUIRE_THAT(bounded([] { rpc_sync<crash>({2, 0s}); }).code() == ErrorCode::kOutcomeUnknown);
    for (const Future<void>& call : {at_one, at_two}) {
      const Error error = bounded([&] { call.wait(); });
      REQUIRE_THAT(error.code() == ErrorCode::kOutcomeUnknown && error.may_have_run());
      REQUIRE_THAT(says(error, "hang"));
    }
    // The test kills it once the call has begun.
    REQUIRE_THAT(error_of([] { rpc_sync<hang>(3); }).code() == ErrorCode::kOutcomeUnknown);

    for (int i = 0; i < 20; ++i) {
      const Error gone = bounded([] { rpc_sync<twice>(1, 1); });
      REQUIRE_THAT(gone.code() == ErrorCode::kUnavailable && !gone.may_have_run());
      REQUIRE_THAT(says(gone, "worker1"));
    }
    REQUIRE_THAT(rpc_sync<twice>(0, 1) == 2);
    REQUIRE_THAT(debug_info().counters.at("calls.pending") == 0);
    REQUIRE_THAT(shutdown().lost_workers ==
                 (std::vector<std::string>{"worker1", "worker2", "worker3"}));
    return 0;
  }
  test::wait_for_test();  // dies here
  return 1;
}

TEST(Behaviour15_CalleeDied, IsAnErrorAndNeitherCrashNorHang) {
  Workers workers("behaviour_callee_dies", 4);
  ASSERT_TRUE(workers.heard(3, "hanging")) << workers.output(0);
  workers.signal(3, SIGKILL);

  EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
  EXPECT_EQ(workers.wait(1), 7);
  EXPECT_EQ(workers.wait(2), 128 + SIGSEGV);
}

// --- 17 ----------------------------------------------------------------------------------------

int64_t known_to_the_caller_alone(int64_t n) { return n; }
int64_t count(int64_t n) { return n; }
std::string spell(std::string text) { return text; }
int64_t serve_under_own_name(int64_t n) { return n + 1; }

SCENARIO(behaviour_function_missing) {
  if (rank == 0) {
    expose<known_to_the_caller_alone>("only.the.caller");
    expose<count>("shared.name");
  } else {
    expose<spell>("shared.name");
  }
  expose<serve_under_own_name>("served.name");
  init_rpc(name_of(rank));
  if (rank == 0) {
    for (int i = 0; i < 3; ++i) {
      const Error missing = error_of([] { rpc_sync<known_to_the_caller_alone>(1, 1); });
      REQUIRE_THAT(missing.code() == ErrorCode::kUnknownFunction && !missing.may_have_run());
      REQUIRE_THAT(says(missing, "only.the.caller") && says(missing, "worker1"));
      const Error other = error_of([] { rpc_async<count>(1, 1).wait(); });
      REQUIRE_THAT(other.code() == ErrorCode::kSignatureMismatch && !other.may_have_run());
      REQUIRE_THAT(says(other, "shared.name") && says(other, "worker1"));
      REQUIRE_THAT(rpc_sync<serve_under_own_name>(1, 1) == 2);
      REQUIRE_THAT(rpc_sync<known_to_the_caller_alone>(0, 5) == 5);
    }
    REQUIRE_THAT(debug_info().peers.at(1).connects == 1);
  }
  REQUIRE_THAT(shutdown().lost_workers.empty());
  return 0;
}

TEST(Behaviour17_FunctionMissingOnCallee, IsATypedErrorThatNamesIt) {
  Workers workers("behaviour_function_missing", 2);
  EXPECT_TRUE(workers.all_succeed());
}

}  // namespace weft::behaviour_processes

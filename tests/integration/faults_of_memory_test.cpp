// A worker for which the system has no memory: messages that are too large for it end with an
// error, and it serves on.
// SPDX-License-Identifier: BSD-3-Clause
#include <sys/resource.h>

#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fault_scene.h"
#include "support/sanitizers.h"

namespace weft::test {
namespace {

struct Sample {
  std::string name;
  std::vector<double> values;
};

int64_t echo_number(int64_t n) { return n; }
int64_t length(std::string text) { return static_cast<int64_t>(text.size()); }
int64_t count(std::vector<Sample> samples) { return static_cast<int64_t>(samples.size()); }
std::string text_of(int64_t bytes) { return std::string(static_cast<size_t>(bytes), 'x'); }

size_t address_space() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

// From now on this process may have so much more memory. Threads and connections that begin take
// address space by the hundred megabytes: called when none does.
void leave_bytes(int64_t more) {
  size_t used = 0;
  REQUIRE_THAT(eventually([&used] {
    const size_t before = std::exchange(used, address_space());
    std::this_thread::sleep_for(20ms);
    return used == before;
  }));
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = used + static_cast<size_t>(more);
  REQUIRE_THAT(setrlimit(RLIMIT_AS, &limit) == 0);
}

template <typename F>
void require_typed_error(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    const ErrorCode code = error.code();
    REQUIRE_THAT(code == ErrorCode::kLimitExceeded || code == ErrorCode::kOutcomeUnknown ||
                 code == ErrorCode::kUnavailable || code == ErrorCode::kRemoteError);
    return;
  }
  REQUIRE_THAT(!"it succeeded");
}

SCENARIO(faults_memory_of_a_callee) {
  init_rpc(worker(rank));
  if (rank == 1) return serve();
  REQUIRE_THAT(rpc_sync<echo_number>("worker1", 1) == 1);
  rpc_sync<leave_bytes>("worker1", 100 << 20);
  const std::string long_text(150 << 20, 'x');
  const std::vector<Sample> samples(3'000'000, Sample{"a name that is not short", {1, 2, 3}});
  for (int i = 0; i < 3; ++i) {
    require_typed_error([&] { rpc_sync<length>("worker1", long_text); });
    REQUIRE_THAT(rpc_sync<echo_number>("worker1", 2) == 2);
    require_typed_error([&] { rpc_sync<count>("worker1", samples); });
    REQUIRE_THAT(rpc_sync<echo_number>("worker1", 3) == 3);
  }
  return end_scene();
}

SCENARIO(faults_memory_of_a_caller) {
  init_rpc(worker(rank));
  if (rank == 1) return serve();
  REQUIRE_THAT(rpc_sync<echo_number>("worker1", 1) == 1);
  leave_bytes(100 << 20);
  for (int i = 0; i < 3; ++i) {
    require_typed_error([&] { rpc_sync<text_of>("worker1", 150 << 20); });
    REQUIRE_THAT(rpc_sync<echo_number>("worker1", 2) == 2);
  }
  return end_scene();
}

class FaultsOfMemory : public testing::TestWithParam<const char*> {};

TEST_P(FaultsOfMemory, AMessageThatIsTooLargeEndsWithAnErrorAndTheWorkerGoesOn) {
  if (!kMemoryShows) GTEST_SKIP() << "sanitizers use the address space for themselves";
  Workers workers(GetParam(), 2);
  EXPECT_TRUE(scene_succeeds(workers));
  std::cout << workers.output(0) << workers.output(1);
}
INSTANTIATE_TEST_SUITE_P(All, FaultsOfMemory,
                         testing::Values("faults_memory_of_a_callee", "faults_memory_of_a_caller"));

}  // namespace
}  // namespace weft::test

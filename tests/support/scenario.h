// Real worker processes for a test: each runs a named scenario of the same test program.
//
//   SCENARIO(echo) {                      // int echo(int rank, int world_size), in the workers
//     weft::init_rpc("worker" + std::to_string(rank));
//     ...
//     return 0;
//   }
//   TEST(Echo, Works) {
//     Workers workers("echo", 2);
//     EXPECT_EQ(workers.wait(0), 0) << workers.output(0);
//   }
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/temporary_directory.h"

namespace weft::test {

using Scenario = std::function<int(int rank, int world_size)>;

/// Remembers a scenario under its name; made before main by SCENARIO.
struct RegisterScenario {
  RegisterScenario(const char* name, Scenario run);
};

#define SCENARIO(name)                                                  \
  int name(int rank, int world_size);                                   \
  const ::weft::test::RegisterScenario name##_registered(#name, &name); \
  int name([[maybe_unused]] int rank, [[maybe_unused]] int world_size)

/// Inside a scenario: fails the worker with a message unless `condition` holds.
#define REQUIRE_THAT(condition) ::weft::test::require(condition, #condition, __FILE__, __LINE__)
void require(bool holds, const char* condition, const char* file, int line);

/// Waits until `condition` holds; false after `bound`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds bound = std::chrono::seconds(20));

/// Blocks the calling scenario until the test says release(rank) (or was killed).
void wait_for_test();

/// Tells the test something: Workers::heard(rank, text) sees the line.
void tell_test(const std::string& line);

/// Started at construction with a rendezvous of their own; killed at destruction.
class Workers {
 public:
  using Environment = std::map<std::string, std::string>;
  Workers(const std::string& scenario, int world_size, const Environment& environment = {});
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  pid_t pid(int rank) const;
  void signal(int rank, int number);

  /// Only a worker that hangs takes so long, on a loaded machine too.
  static constexpr std::chrono::milliseconds kForHangs = std::chrono::minutes(4);

  /// Exit status, 128 + signal for one that was killed, -1 if it still runs after `bound`.
  int wait(int rank, std::chrono::milliseconds bound = kForHangs);
  /// Whether all workers ended with 0; prints the output of those that did not.
  bool all_succeed(std::chrono::milliseconds bound = kForHangs);

  /// Waits until the worker said tell_test(line).
  bool heard(int rank, const std::string& line,
             std::chrono::milliseconds bound = std::chrono::seconds(30));
  /// Throws if the worker has ended.
  void release(int rank);

  /// Everything the worker printed so far, standard output and error together.
  std::string output(int rank);

 private:
  struct Process;
  std::vector<std::unique_ptr<Process>> processes_;
  base::TemporaryDirectory directory_{"weft-test"};
};

}  // namespace weft::test

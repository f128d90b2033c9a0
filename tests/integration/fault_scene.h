// What the scenarios of the fault tests are played with: functions to call, faults to cause, and
// the outcome and time that must follow.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "support/sanitizers.h"
#include "support/scenario.h"
#include "support/stalls.h"
#include "weft/rpc.h"

namespace weft::test {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

/// "worker0", "worker1", ...
std::string worker(int rank);

/// Options under which silence is noticed in tenths of a second.
Options impatient();

/// What ranks other than 0 do while rank 0 runs the scene: they serve until it is over.
int serve();
/// What rank 0 does at the end: everybody shuts down gracefully.
int end_scene();

/// In the test: whether rank 0 and then all others ended well; prints what they said if not.
bool scene_succeeds(Workers& workers);

/// How a call ended and how long that took.
struct Ending {
  std::optional<Error> error;  // nothing: it returned
  std::chrono::nanoseconds took{};
  std::chrono::nanoseconds stalled{};  // of that time, the machine stood still

  /// A bound holds for the time that the machine gave, and is that of a plain build.
  bool took_at_most(std::chrono::nanoseconds bound) const {
    return took - stalled <= bound * kSlowness;
  }
};

/// Of a call that was made at `start` and has ended now. watch_stalls() was called before.
Ending ending_since(std::chrono::steady_clock::time_point start, std::optional<Error> error);

template <typename Call>
Ending ending_of(const Call& call) {
  watch_stalls();
  const auto start = std::chrono::steady_clock::now();
  try {
    call();
  } catch (const Error& error) {
    return ending_since(start, error);
  }
  return ending_since(start, std::nullopt);
}

/// Whether `condition` comes to hold within `bound`, as Ending::took_at_most() counts it.
bool happens_within(milliseconds bound, const std::function<bool()>& condition);

struct Expected {
  ErrorCode code;
  bool may_have_run;
  milliseconds after = 0ms;
  milliseconds within;
  std::vector<std::string> names = {};  // parts of the message
};

/// Inside a scenario: fails the worker, printing the ending, unless it is as expected.
void require_ending(const Ending& ending, const Expected& expected,
                    std::source_location where = std::source_location::current());
void require_success(const Ending& ending, milliseconds within,
                     std::source_location where = std::source_location::current());

// Functions to call.

pid_t process_id();
int64_t echo(int64_t value);
/// Waits, in a way Weft knows nothing of and whether or not it is cancelled, for let_go().
int64_t hold(int64_t value);
int64_t held();  // how many wait there now
void let_go();
/// Takes a tensor and counts; the count tells which calls ran.
void swallow(at::Tensor tensor);
int64_t swallowed();

// Faults, and what can be seen of a process.

/// Returns when every thread of the process has stopped; false if it does not.
bool freeze(pid_t process);
void thaw(pid_t process);
/// Shuts every connection of this process down, over TCP and through shared memory, behind the back
/// of its owners.
void break_connections();
/// The port on which this process listens.
int listening_port();
size_t resident_bytes(pid_t process);
/// Of this process, without what its heap could give back.
size_t memory_now();

}  // namespace weft::test

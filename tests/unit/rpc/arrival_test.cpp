// A thread that decodes a reply may outlive the agent it called.
// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/arrival.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"

namespace weft::arrival_test {

// Its codec stops in the middle of a reply until the test lets it go on, then asks for the agent.
struct Patient {};
std::atomic<std::thread::id> decoder{};
std::atomic<bool> goes_on{false};
Patient make_patient() { return {}; }
int64_t seven() { return 7; }

}  // namespace weft::arrival_test

namespace weft {

template <>
struct Codec<arrival_test::Patient> {
  static void encode(Encoder&, const arrival_test::Patient&) {}
  static arrival_test::Patient decode(Decoder& in) {
    arrival_test::decoder = std::this_thread::get_id();
    test::eventually([] { return arrival_test::goes_on.load(); });
    (void)in.arrival()->agent();
    return {};
  }
  static void describe(TypeDescription& out) { out.add("Patient"); }
};

namespace arrival_test {

/// Calls make_patient() and destroys the agents while the reply is decoded. False: not the thread
/// that waits decodes it, but one of the agent's own, which keep the agent.
bool destroys_agent_while_caller_decodes() {
  decoder = std::thread::id();
  goes_on = false;
  auto group = std::make_unique<test::LoopbackGroup>(std::vector<std::string>{"a", "b"});
  Agent& caller = (*group)[0];
  caller.sync<seven>("b");  // connected: the thread that waits may receive its reply itself
  std::optional<ErrorCode> thrown;
  std::thread waits([&caller, &thrown] {
    try {
      caller.sync<make_patient>("b");
    } catch (const Error& error) {
      thrown = error.code();
    }
  });
  EXPECT_TRUE(test::eventually([] { return decoder.load() != std::thread::id(); }));
  const bool by_caller = decoder.load() == waits.get_id();
  if (by_caller) group.reset();
  goes_on = true;
  waits.join();
  EXPECT_EQ(thrown, by_caller ? std::optional(ErrorCode::kShuttingDown) : std::nullopt);
  return by_caller;
}

TEST(Arrival, WhoseAgentIsDestroyedMeanwhileSaysSo) {
  bool happened = false;
  for (int attempt = 0; attempt < 100 && !happened; ++attempt) {
    happened = destroys_agent_while_caller_decodes();
  }
  EXPECT_TRUE(happened);
}

}  // namespace arrival_test
}  // namespace weft

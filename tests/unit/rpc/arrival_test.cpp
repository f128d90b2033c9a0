// A thread that decodes a reply may outlive the agent it called.
// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/arrival.h"

#include <atomic>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"

namespace weft::arrival_test {

// Its codec stops in the middle of a reply until the test has destroyed the agent, then asks for
// it.
struct Patient {};
std::atomic<bool> decoding{false};
std::atomic<bool> agent_gone{false};
Patient make_patient() { return {}; }
int64_t seven() { return 7; }

}  // namespace weft::arrival_test

namespace weft {

template <>
struct Codec<arrival_test::Patient> {
  static void encode(Encoder&, const arrival_test::Patient&) {}
  static arrival_test::Patient decode(Decoder& in) {
    arrival_test::decoding = true;
    test::eventually([] { return arrival_test::agent_gone.load(); });
    (void)in.arrival()->agent();
    return {};
  }
  static void describe(TypeDescription& out) { out.add("Patient"); }
};

namespace arrival_test {

using testing::Property;
using testing::Throws;

TEST(Arrival, WhoseAgentIsDestroyedMeanwhileSaysSo) {
  auto group = std::make_unique<test::LoopbackGroup>(std::vector<std::string>{"a", "b"});
  Agent& caller = (*group)[0];
  caller.sync<seven>("b");  // connected: the thread that waits receives its reply itself
  std::thread waits([&caller] {
    EXPECT_THAT([&] { caller.sync<make_patient>("b"); },
                Throws<Error>(Property(&Error::code, ErrorCode::kShuttingDown)));
  });
  ASSERT_TRUE(test::eventually([] { return decoding.load(); }));

  group.reset();
  agent_gone = true;

  waits.join();
}

}  // namespace arrival_test
}  // namespace weft

// What the shell around the cores of the reference protocol sees to, over the loopback transport.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "weft/rref.h"

namespace weft::keeper_test {

using namespace std::chrono_literals;
using testing::Property;
using testing::Throws;
using Clock = std::chrono::steady_clock;

bool within(Clock::duration limit, const std::function<bool()>& condition) {
  for (const auto end = Clock::now() + limit; Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return condition();
}

struct Thing {
  Thing() {
    ++alive;
    ++made;
  }
  Thing(const Thing&) = delete;
  ~Thing() { --alive; }
  void rest(int64_t milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
  int64_t answer() const { return 42; }
  static inline std::atomic<int> alive{0};
  static inline std::atomic<int> made{0};
};
struct Other {
  int64_t value = 0;
};

RRef<Thing> make_on(std::string worker) { return remote<Thing>(current_agent(), worker); }
RRef<Thing> same(RRef<Thing> thing) { return thing; }
int64_t seven() { return 7; }
int64_t answer_of(RRef<Thing> thing) { return thing.rpc_sync<&Thing::answer>(); }
at::Tensor broken() { throw std::out_of_range("no tensor today"); }
void take_tensor(RRef<at::Tensor>) {}
std::promise<void> gate_opens;
std::shared_future<void> gate;
void wait_for_gate() { gate.wait(); }

class KeeperTest : public testing::Test {
 protected:
  uint64_t count(test::LoopbackGroup& group, size_t rank, const char* what) {
    return group[rank].debug_info().counters.at(what);
  }
};

// Rule 3: c, who returns its only reference to an object of b, holds it until a has registered,
// however long the way from a to b takes.
TEST_F(KeeperTest, TheSenderOfAReplyHoldsUntilItsReceiverHasRegistered) {
  std::atomic<bool> slow{true};
  std::atomic<uint64_t> to_b{0};
  test::LoopbackGroup group({"a", "b", "c"});
  group[0].sync<seven>("b");  // connected
  group.network().set_faults([&](const transport::FrameInFlight& frame) {
    if (slow && frame.from_connector && frame.kind == 2 && frame.connection == to_b) {
      return transport::Fault{transport::Fault::Kind::kDelay, 200ms};
    }
    return transport::Fault{};
  });
  for (uint64_t connection = 0; connection < 8; ++connection) {  // whichever it is
    to_b = connection;
    EXPECT_EQ((group[0].sync<make_on>("c", "b").rpc_sync<&Thing::answer>()), 42);
  }
  slow = false;
}

// Whoever got a reference in a reply says so: nothing is held for a lease because of it.
TEST_F(KeeperTest, RepliesLeaveNoHoldsBehind) {
  test::LoopbackGroup group({"a", "b", "c"});
  {
    const auto on_b = remote<Thing>(group[0], "b");
    group[0].sync<same>("b", on_b);    // by the owner to the creator
    group[0].sync<same>("c", on_b);    // by another
    group[1].sync<make_on>("c", "b");  // to the owner itself
    const auto one = group[0].async<make_on>("b", "b"), two = group[0].async<make_on>("b", "b");
    one.wait();
    two.wait();
  }
  EXPECT_TRUE(within(2s, [] { return Thing::alive == 0; })) << Thing::alive;
}

// The owner is told as soon as the creation is answered, although nothing else is said to it.
TEST_F(KeeperTest, WhatWasDroppedBeforeItsCreationWasAnsweredIsReleased) {
  test::LoopbackGroup group({"a", "b"});
  group[0].sync<seven>("b");  // connected
  group.network().set_faults([](const transport::FrameInFlight& frame) {
    if (frame.from_connector) return transport::Fault{};
    return transport::Fault{transport::Fault::Kind::kDelay, 100ms};
  });
  const int before = Thing::made;
  remote<Thing>(group[0], "b");
  ASSERT_TRUE(within(2s, [before] { return Thing::made == before + 1; }));
  EXPECT_TRUE(within(2s, [] { return Thing::alive == 0; })) << Thing::alive;
}

// What keeps references alive does not wait behind calls that fill the window.
TEST_F(KeeperTest, ALongCallDoesNotCostTheReferencesOfItsCaller) {
  Options options;
  options.window_calls = 1;
  options.rref_lease = 300ms;
  test::LoopbackGroup group({"a", "b"}, options);
  const auto thing = remote<Thing>(group[0], "b");
  thing.rpc_sync<&Thing::rest>(int64_t{1200});
  EXPECT_EQ(thing.rpc_sync<&Thing::answer>(), 42);
}

// Nor behind functions that block all threads their worker may have.
TEST_F(KeeperTest, FunctionsThatHoldAllThreadsDoNotCostReferences) {
  Options options;
  options.handler_threads = 1;
  options.max_handler_threads = 8;
  options.rref_lease = 300ms;
  test::LoopbackGroup group({"a", "b"}, options);
  auto dropped = std::make_optional(remote<Thing>(group[0], "b"));
  const auto kept = remote<Thing>(group[0], "b");
  kept.rpc_sync<&Thing::answer>();
  gate_opens = std::promise<void>();
  gate = gate_opens.get_future();
  std::vector<Future<void>> blocked;
  ASSERT_TRUE(within(5s, [&] {
    blocked.push_back(group[0].async<wait_for_gate>("b"));
    return std::any_of(blocked.begin(), blocked.end(), [](const Future<void>& each) {
      return each.ready() && each.error()->code() == ErrorCode::kLimitExceeded;
    });
  }));

  dropped.reset();
  EXPECT_TRUE(within(2s, [] { return Thing::alive == 1; })) << Thing::alive;
  std::this_thread::sleep_for(2 * options.rref_lease);

  gate_opens.set_value();
  for (const Future<void>& each : blocked) each.wait_for(5s);
  // The threads have answered; they are free when they wait for something to do.
  EXPECT_TRUE(within(5s, [&] {
    const auto answer = kept.rpc_async<&Thing::answer>();
    answer.wait_for(5s);
    return answer.ready() && !answer.error() && answer.wait() == 42;
  }));
}

// The end of this worker says nothing about the owner.
TEST_F(KeeperTest, TheEndOfACallersWorkerIsNotTheLossOfTheObject) {
  test::LoopbackGroup group({"a", "b"});
  const auto thing = remote<Thing>(group[0], "b");
  thing.rpc_sync<&Thing::answer>();
  const Future<void> resting = thing.rpc_async<&Thing::rest>(int64_t{500});
  ASSERT_TRUE(within(2s, [&] { return count(group, 1, "calls.serving") > 0; }));
  group.network().set_faults([](const transport::FrameInFlight&) {
    return transport::Fault{transport::Fault::Kind::kDelay, 60s};
  });
  group.network().break_all();  // and nobody is reached any more
  EXPECT_FALSE(resting.wait_for(50ms));
  EXPECT_GT(count(group, 0, "calls.outstanding"), 0u);

  group[0].shutdown_now();

  EXPECT_THAT([&] { resting.wait(); },
              Throws<Error>(Property(&Error::code, ErrorCode::kOutcomeUnknown)));
}

TEST_F(KeeperTest, ACreationThatCannotBeSentLeavesNothing) {
  test::LoopbackGroup group({"a", "b"});
  {
    const auto failed = remote<broken>(group[0], "b");
    EXPECT_THROW(failed.to_here(), Error);
    EXPECT_THROW(remote<take_tensor>(group[0], "b", failed), Error);
  }
  EXPECT_TRUE(within(2s, [&] { return count(group, 0, "rrefs.held") == 0; }));
}

template <typename F>
auto on_new_thread(const F& f) {
  return std::async(std::launch::async, f).get();
}

// A group in which the first call of a to b after create() was called meets a fault; calls over
// other connections overtake it.
class CreationOnTheWay {
 public:
  explicit CreationOnTheWay(transport::Fault fault) : fault_(fault) {
    group.network().set_faults([this](const transport::FrameInFlight& frame) {
      const bool first_call = frame.from_connector && frame.kind == kCall &&
                              frame.to == group.address(1) && armed_.exchange(false);
      return first_call ? fault_ : transport::Fault{};
    });
  }
  // Each on a thread of its own, so over a connection of its own.
  RRef<Thing> create() {
    armed_ = true;
    return on_new_thread([&] { return remote<Thing>(group[0], "b"); });
  }
  static int64_t use(const RRef<Thing>& thing) {
    return on_new_thread([&] { return thing.rpc_sync<&Thing::answer>(); });
  }
  // Connects both connections, with threads that have the numbers before those of the next two.
  void connect() {
    for (int i = 0; i < 2; ++i) on_new_thread([this] { return group[0].sync<seven>("b"); });
  }

  test::LoopbackGroup group{{"a", "b"}, two_connections()};

 private:
  static constexpr uint8_t kCall = 2;
  static Options two_connections() {
    Options options;
    options.connections_per_peer = 2;
    return options;
  }
  const transport::Fault fault_;
  std::atomic<bool> armed_{false};
};

TEST_F(KeeperTest, ACallThatOvertakesTheCreationOfItsObjectWaitsForIt) {
  CreationOnTheWay creation({transport::Fault::Kind::kDelay, 200ms});
  creation.connect();
  const auto thing = creation.create();
  auto answer = std::async(std::launch::async, [&] { return creation.use(thing); });

  EXPECT_TRUE(within(10s, [&] {
    creation.group.network().deliver_due();
    return answer.wait_for(0s) == std::future_status::ready;
  }));
  EXPECT_EQ(answer.get(), 42);
}

TEST_F(KeeperTest, ACallThatOvertookACreationWhichFailsFails) {
  CreationOnTheWay creation({transport::Fault::Kind::kDropConnection});
  creation.connect();
  const auto thing = creation.create();

  EXPECT_THAT([&] { creation.use(thing); },
              Throws<Error>(Property(&Error::code, ErrorCode::kRRefLost)));

  EXPECT_TRUE(within(2s, [&] { return count(creation.group, 1, "rrefs.owned") == 0; }));
}

TEST_F(KeeperTest, AContinuationMayWaitForAnotherResultWithAReference) {
  test::LoopbackGroup group({"a", "b"});
  for (int i = 0; i < 50; ++i) {
    const auto second = group[0].async<make_on>("b", "b");
    const auto first = group[0].async<make_on>("b", "b").then(
        [second](const RRef<Thing>&) { return second.wait().rpc_sync<&Thing::answer>(); });
    EXPECT_EQ(first.wait(), 42);
  }
}

TEST_F(KeeperTest, ShutdownEndsCallsWhoseResultIsBeingRegistered) {
  for (int i = 0; i < 10; ++i) {
    test::LoopbackGroup group({"a", "b"});
    std::atomic<bool> done{false};
    std::thread caller([&] {
      try {
        for (;;) group[0].sync<make_on>("b", "b");
      } catch (const Error&) {
        done = true;
      }
    });
    std::this_thread::sleep_for(2ms);
    group[0].shutdown_now();
    EXPECT_TRUE(within(10s, [&] { return done.load(); }));
    caller.join();
  }
}

TEST_F(KeeperTest, AReferenceToAnotherTypeIsRefused) {
  test::LoopbackGroup group({"a", "b"});
  const auto thing = remote<Thing>(group[0], "b");
  thing.rpc_sync<&Thing::answer>();
  Encoder message;
  Codec<RRef<Thing>>::encode(message, thing);
  const std::weak_ptr<rpc::AgentCore> agent = detail::AgentAccess::core(group[1]);
  detail::Arrival arrival(agent, group[0].info(), detail::Arrival::Kind::kCall);
  Decoder decoder(message.payload(), {}, &arrival);
  EXPECT_THAT([&] { Codec<RRef<Other>>::decode(decoder); },
              Throws<Error>(Property(&Error::code, ErrorCode::kInvalidArgument)));
}

TEST_F(KeeperTest, RenewalsAreNoActivity) {
  Options options;
  options.rref_lease = 60ms;
  test::LoopbackGroup group({"a", "b"}, options);
  const auto thing = remote<Thing>(group[0], "b");
  EXPECT_EQ(thing.rpc_sync<&Thing::answer>(), 42);
  const auto began = Clock::now();
  group.shut_down();
  EXPECT_LT(Clock::now() - began, 3s);
}

}  // namespace weft::keeper_test

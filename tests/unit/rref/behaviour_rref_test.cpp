// What users rely on of remote references, over the loopback transport.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <semaphore>
#include <thread>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "weft/rref.h"

namespace weft::behaviour_rref {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using Clock = std::chrono::steady_clock;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }

bool eventually(const std::function<bool()>& condition) {
  for (const auto limit = Clock::now() + 10s; Clock::now() < limit;) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

struct Counted {
  explicit Counted(int64_t start) : value(start) { ++alive; }
  Counted(const Counted&) = delete;
  ~Counted() { --alive; }
  int64_t add(int64_t n) { return value += n; }
  int64_t get() const { return value; }
  Future<int64_t> add_later(int64_t n) {
    Promise<int64_t> promise;
    Future<int64_t> future = promise.future();
    std::thread([this, n, promise = std::move(promise)]() mutable {
      std::this_thread::sleep_for(2ms);
      promise.set_value(value += n);
    }).detach();
    return future;
  }
  std::atomic<int64_t> value;
  static inline std::atomic<int64_t> alive{0};
};
int64_t twice_of(const Counted& counted, int64_t n) { return 2 * (counted.value + n); }

struct Derived : Counted {
  Derived() : Counted(100) {}
};

// A gate that a function waits at until the test opens it.
std::counting_semaphore<>* gate = nullptr;
int64_t late(int64_t n) {
  gate->acquire();
  return n;
}
int64_t seven() { return 7; }
int64_t increase(int64_t& number, int64_t by) { return number += by; }
std::atomic<int> runs{0};
int64_t count_run() { return ++runs; }
at::Tensor broken() { throw std::out_of_range("no tensor today"); }
int64_t use(RRef<Counted> counted) {
  if (!counted.confirmed_by_owner()) return -1;
  return counted.rpc_sync<&Counted::add>(1);
}
bool confirmed_everywhere(std::vector<RRef<Counted>> some,
                          std::map<std::string, RRef<int64_t>> others) {
  for (const auto& each : some) {
    if (!each.confirmed_by_owner()) return false;
  }
  for (const auto& [name, each] : others) {
    if (!each.confirmed_by_owner()) return false;
  }
  return true;
}
int64_t use_number(RRef<int64_t> number) { return number.local_value(); }
std::vector<RRef<Counted>> kept;
void keep(RRef<Counted> counted) { kept.push_back(counted); }
RRef<Counted> hand_out() { return kept.back(); }
RRef<int64_t> make_own() { return RRef<int64_t>(current_agent(), 5); }

int64_t forward(RRef<Counted> counted, int64_t ttl) {
  if (ttl == 0) return counted.rpc_sync<&Counted::add>(1);
  const int next =
      (current_agent().info().id + 1) % static_cast<int>(current_agent().members().size());
  return current_agent().sync<forward>(next, counted, ttl - 1);
}

class BehaviourOfRRefs : public testing::Test {
 protected:
  ~BehaviourOfRRefs() override { kept.clear(); }
  uint64_t count(size_t rank, const char* what) {
    return group[rank].debug_info().counters.at(what);
  }
  bool all_gone() {
    return eventually([this] {
      for (size_t rank = 0; rank < 3; ++rank) {
        if (count(rank, "rrefs.owned") + count(rank, "rrefs.held") + count(rank, "rrefs.holders") >
            0)
          return false;
      }
      return Counted::alive == 0;
    });
  }
  test::LoopbackGroup group{{"a", "b", "c"}};
};

using Behaviour21_RRefAsArgument = BehaviourOfRRefs;

TEST_F(Behaviour21_RRefAsArgument, FromUserToOwnerToUserAndToSelf) {
  {
    const auto counted = remote<Counted>(group[0], "b", int64_t{0});
    EXPECT_EQ(group[0].sync<use>("b", counted), 1);  // user to owner
    EXPECT_EQ(group[0].sync<use>("c", counted), 2);  // user to user
    EXPECT_EQ(group[0].sync<use>("a", counted), 3);  // user to itself
    const RRef<Counted> own = remote<Counted>(group[0], "a", int64_t{10});
    EXPECT_TRUE(own.is_owner());
    EXPECT_EQ(group[0].sync<use>("b", own), 11);  // owner to user
    EXPECT_EQ(group[0].sync<use>("a", own), 12);  // owner to itself
  }
  EXPECT_TRUE(all_gone());
}

TEST_F(Behaviour21_RRefAsArgument, AsResultOfOwnerAndOfUser) {
  {
    const RRef<int64_t> five = group[0].sync<make_own>("b");
    EXPECT_EQ(five.owner().name, "b");
    EXPECT_TRUE(five.confirmed_by_owner());
    EXPECT_EQ(five.to_here(), 5);
    group[0].sync<keep>("c", remote<Counted>(group[0], "b", int64_t{1}));
    const RRef<Counted> handed = group[0].sync<hand_out>("c");
    kept.clear();
    EXPECT_EQ(handed.rpc_sync<&Counted::add>(1), 2);
  }
  EXPECT_TRUE(all_gone());
}

TEST_F(Behaviour21_RRefAsArgument, OutlivesTheHandleItWasPassedFrom) {
  {
    auto counted = remote<Counted>(group[0], "b", int64_t{5});
    group[0].sync<keep>("c", counted);
  }
  EXPECT_EQ(group[2].sync<use>("c", kept.back()), 6);
  EXPECT_EQ(Counted::alive, 1);
  kept.clear();
  EXPECT_TRUE(all_gone());
}

using Behaviour22_ForwardChain = BehaviourOfRRefs;

TEST_F(Behaviour22_ForwardChain, EightTimesAroundTheRing) {
  {
    const auto counted = remote<Counted>(group[0], "b", int64_t{0});
    for (int64_t i = 1; i <= 20; ++i) EXPECT_EQ(group[0].sync<forward>("b", counted, 8), i);
  }
  EXPECT_TRUE(all_gone());
}

using Behaviour23_ArgumentsAreConfirmed = BehaviourOfRRefs;

TEST_F(Behaviour23_ArgumentsAreConfirmed, BeforeTheFunctionStartsAtAnyDepthOfAValue) {
  for (int i = 0; i < 50; ++i) {
    // Created at the same moment, so that most are not confirmed when they are passed on.
    const auto counted = remote<Counted>(group[0], "b", int64_t{0});
    const auto number = remote<seven>(group[0], "b");
    EXPECT_TRUE(group[0].sync<confirmed_everywhere>(
        "c", std::vector{counted, counted}, std::map<std::string, RRef<int64_t>>{{"x", number}}));
  }
  EXPECT_TRUE(all_gone());
}

using Behaviour24_ToHere = BehaviourOfRRefs;

TEST_F(Behaviour24_ToHere, WaitsForTheValueAndHoldsNoThreadOfTheOwner) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const auto value = remote<late>(group[0], "b", int64_t{9});
  std::vector<std::thread> waiting;
  std::atomic<int> got{0};
  for (int i = 0; i < 40; ++i) {  // more than the owner has handler threads
    waiting.emplace_back([&] { got += value.to_here() == 9; });
  }
  EXPECT_EQ(group[0].sync<seven>("b"), 7);
  closed.release();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(got, 40);
}

TEST_F(Behaviour24_ToHere, ThrowsWhatTheCreationThrew) {
  const auto tensor = remote<broken>(group[0], "b");
  for (int i = 0; i < 3; ++i) {
    try {
      tensor.to_here();
      ADD_FAILURE() << "there is no tensor";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRemoteError);
      EXPECT_EQ(error.remote_type(), "std::out_of_range");
      EXPECT_EQ(error.remote_text(), "no tensor today");
    }
  }
}

TEST_F(Behaviour24_ToHere, TimesOutThenSucceeds) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const auto value = remote<late>(group[0], "b", int64_t{9});
  EXPECT_THAT([&] { value.to_here(20ms); }, fails_with(ErrorCode::kTimeout));
  closed.release();
  EXPECT_EQ(value.to_here(), 9);
}

std::promise<ErrorCode>* gave_up = nullptr;
int64_t fetch(RRef<int64_t> value) {
  try {
    return value.to_here();
  } catch (const Error& error) {
    gave_up->set_value(error.code());
    throw;
  }
}

TEST_F(Behaviour24_ToHere, TimesOutOnTheOwnerToo) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  std::promise<ErrorCode> outcome;
  gave_up = &outcome;
  const auto value = remote<late>(group[0], "a", int64_t{9});
  ASSERT_TRUE(value.is_owner());

  EXPECT_THAT([&] { value.to_here(20ms); }, fails_with(ErrorCode::kTimeout));
  // A function has the time that its own caller has left.
  EXPECT_THAT([&] { group[0].sync<fetch>(Destination("a", 20ms), value); },
              fails_with(ErrorCode::kTimeout));
  EXPECT_EQ(outcome.get_future().get(), ErrorCode::kTimeout);

  closed.release();
  EXPECT_EQ(value.to_here(), 9);
}

std::promise<void>* begun = nullptr;
void await_local(RRef<int64_t> value) {
  begun->set_value();
  try {
    value.local_value();
  } catch (const Error& error) {
    gave_up->set_value(error.code());
    throw;
  }
}

TEST_F(Behaviour24_ToHere, AWaitOnTheOwnerEndsWithTheCallItIsFor) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  std::promise<ErrorCode> outcome;
  gave_up = &outcome;
  std::promise<void> runs;
  begun = &runs;
  const auto value = remote<late>(group[0], "a", int64_t{9});

  const auto call = group[0].async<await_local>(Destination("a", Timeout(0)), value);
  runs.get_future().wait();
  call.cancel();

  EXPECT_EQ(outcome.get_future().get(), ErrorCode::kCancelled);
  closed.release();
  EXPECT_EQ(value.to_here(), 9);  // nobody waits at the gate any more
}

using Behaviour25_CreationTimesOut = BehaviourOfRRefs;

TEST_F(Behaviour25_CreationTimesOut, IsReportedByEveryUseAndLeavesNothing) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  {
    const auto value = remote<late>(group[0], Destination("b", 20ms), int64_t{9});
    EXPECT_THAT([&] { value.to_here(5s); }, fails_with(ErrorCode::kTimeout));
    EXPECT_THAT([&] { group[0].sync<[](RRef<int64_t>) {}>("c", value); },
                fails_with(ErrorCode::kTimeout));
    EXPECT_FALSE(value.confirmed_by_owner());
  }
  closed.release();
  EXPECT_TRUE(all_gone());
}

using Behaviour26_LostControlMessages = BehaviourOfRRefs;

TEST_F(Behaviour26_LostControlMessages, ConnectionsThatBreakChangeNothing) {
  // Every third control message is the last of its connection.
  const auto seen = std::make_shared<std::atomic<int>>(0);
  group.network().set_faults([seen](const transport::FrameInFlight& frame) {
    const bool control = frame.kind == 2 && ++*seen % 7 == 0;
    return control ? transport::Fault{transport::Fault::Kind::kDropConnection} : transport::Fault{};
  });
  for (int64_t round = 0; round < 30; ++round) {
    const auto counted = remote<Counted>(group[0], "b", round);
    try {
      EXPECT_EQ(group[0].sync<use>({"c", 20s}, counted), round + 1);
    } catch (const Error& error) {
      EXPECT_THAT(error.code(), testing::AnyOf(ErrorCode::kOutcomeUnknown, ErrorCode::kRemoteError,
                                               ErrorCode::kRRefLost, ErrorCode::kUnavailable));
    }
  }
  group.network().set_faults({});
  EXPECT_TRUE(all_gone());
}

using Behaviour27_Counters = BehaviourOfRRefs;

TEST_F(Behaviour27_Counters, TellWhatIsOwnedAndHeld) {
  const RRef<int64_t> local(group[0], 3);
  EXPECT_EQ(count(0, "rrefs.owned"), 0u);  // nobody else knows it
  {
    const auto first = remote<Counted>(group[0], "b", int64_t{1});
    const auto second = remote<Counted>(group[0], "b", int64_t{2});
    EXPECT_EQ(second.rpc_sync<&Counted::get>(), 2);
    EXPECT_EQ(count(1, "rrefs.owned"), 2u);
    EXPECT_EQ(count(0, "rrefs.held"), 2u);
    EXPECT_EQ(count(0, "rrefs.unconfirmed"), 0u);
    const RRefCensus census = rref_census(group[1]);
    ASSERT_EQ(census.owned.size(), 1u);
    EXPECT_THAT(census.owned[0].type, HasSubstr("Counted"));
    EXPECT_EQ(census.owned[0].objects, 2u);
    EXPECT_EQ(census.owned[0].held_by.at("a"), 2u);
    EXPECT_EQ(rref_census(group[0]).held.at("b"), 2u);
  }
  EXPECT_TRUE(all_gone());
}

using Behaviour28_Shutdown = BehaviourOfRRefs;

TEST_F(Behaviour28_Shutdown, IsNotHeldUpByReferencesThatAreKept) {
  const auto counted = remote<Counted>(group[0], "b", int64_t{1});
  group[0].sync<keep>("c", counted);
  const auto began = Clock::now();
  group.shut_down();
  EXPECT_LT(Clock::now() - began, 5s);
  EXPECT_EQ(Counted::alive, 0);  // their owner let them go
}

using Behaviour29_UseAfterShutdown = BehaviourOfRRefs;

TEST_F(Behaviour29_UseAfterShutdown, IsAnErrorAndToDropIsHarmless) {
  const auto counted = remote<Counted>(group[0], "b", int64_t{1});
  EXPECT_EQ(counted.rpc_sync<&Counted::get>(), 1);
  group.shut_down();
  EXPECT_THAT([&] { counted.rpc_sync<&Counted::get>(); }, fails_with(ErrorCode::kShuttingDown));
  EXPECT_THAT([&] { remote<seven>(group[0], "b").to_here(); },
              fails_with(ErrorCode::kShuttingDown));
}

using Behaviour31_CallsThroughReferences = BehaviourOfRRefs;

TEST_F(Behaviour31_CallsThroughReferences, MethodsOfEveryKind) {
  const auto derived = remote<Derived>(group[0], "b");
  EXPECT_EQ(derived.rpc_sync<&Counted::add>(1), 101);                // of a base class
  EXPECT_EQ(derived.rpc_sync<&Counted::get>(), 101);                 // const
  EXPECT_EQ(derived.rpc_async<&Counted::add_later>(9).wait(), 110);  // asynchronous
  EXPECT_EQ(derived.rpc_sync<twice_of>(1), 222);                     // a free function
  EXPECT_EQ(derived.remote<&Counted::add>(1).to_here(), 111);
  EXPECT_EQ(derived.remote<&Counted::add_later>(1).to_here(), 112);
}

TEST_F(Behaviour31_CallsThroughReferences, HaveTheirOwnTimeLimit) {
  struct Slow {
    int64_t wait() {
      gate->acquire();
      ++through;
      return 1;
    }
    int64_t count() { return through; }
    std::atomic<int64_t> through{0};
  };
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const auto slow = remote<Slow>(group[0], "b");
  EXPECT_THAT([&] { slow.within(20ms).rpc_sync<&Slow::wait>(); }, fails_with(ErrorCode::kTimeout));
  closed.release(2);
  EXPECT_EQ(slow.rpc_sync<&Slow::wait>(), 1);
  // The one nobody waits for any more still uses the gate.
  EXPECT_TRUE(eventually([&] { return slow.rpc_sync<&Slow::count>() == 2; }));
}

TEST_F(Behaviour31_CallsThroughReferences, ToAnObjectOfOnesOwnThatNobodyElseKnows) {
  EXPECT_EQ((RRef<int64_t>(group[0], 3).rpc_sync<increase>(1)), 4);
  EXPECT_EQ((RRef<int64_t>(group[0], 3).rpc_async<increase>(2).wait()), 5);
  EXPECT_EQ((RRef<int64_t>(group[0], 3).remote<increase>(3).to_here()), 6);

  {
    const RRef<int64_t> number(group[0], 3);
    EXPECT_EQ(number.rpc_sync<increase>(1), 4);
    EXPECT_EQ(number.remote<increase>(1).to_here(), 5);
    EXPECT_EQ(number.local_value(), 5);
  }
  EXPECT_TRUE(all_gone());
}

TEST_F(Behaviour31_CallsThroughReferences, RunAlthoughTheResultIsDroppedAtOnce) {
  runs = 0;
  for (const char* worker : {"a", "b"}) {
    for (int i = 0; i < 20; ++i) remote<count_run>(group[0], worker);
  }
  EXPECT_TRUE(eventually([] { return runs == 40; })) << runs;
  EXPECT_TRUE(all_gone());
}

struct Single {
  static constexpr bool kSerialized = true;
  std::vector<int64_t> seen;
  std::atomic<int> inside{0};
  bool overlapped = false;
  int64_t note(int64_t n) {
    if (++inside > 1) overlapped = true;
    seen.push_back(n);
    std::this_thread::sleep_for(50us);
    --inside;
    return n;
  }
  bool in_order() const {
    for (size_t i = 1; i < seen.size(); ++i) {
      if (seen[i] != seen[i - 1] + 1) return false;
    }
    return !overlapped;
  }
};

TEST_F(Behaviour31_CallsThroughReferences, OfASerializedObjectRunOneAfterTheOther) {
  const auto single = remote<Single>(group[0], "b");
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 300; ++i) calls.push_back(single.rpc_async<&Single::note>(i));
  wait_all(calls);
  EXPECT_TRUE(single.rpc_sync<&Single::in_order>());
}

// Answers all its callers when the second one has come.
struct Pairing {
  static constexpr bool kSerialized = true;
  Future<int64_t> meet(int64_t n) {
    waiting.emplace_back();
    Future<int64_t> future = waiting.back().future();
    sum += n;
    if (waiting.size() == 2) {
      for (Promise<int64_t>& each : std::exchange(waiting, {})) each.set_value(sum);
    }
    return future;
  }
  std::vector<Promise<int64_t>> waiting;
  int64_t sum = 0;
};

TEST_F(Behaviour31_CallsThroughReferences, OfASerializedObjectMayWaitForLaterOnes) {
  const auto pairing = remote<Pairing>(group[0], "b");

  const auto first = pairing.within(60s).rpc_async<&Pairing::meet>(1);
  const auto second = pairing.within(60s).rpc_async<&Pairing::meet>(2);

  EXPECT_EQ(second.wait(), 3);
  EXPECT_EQ(first.wait(), 3);
}

// As an argument that was received, until its call lets go of it.
struct Parcel {
  std::shared_ptr<int> content;
  static inline std::atomic<int> received{0};
};
void take_beside(int64_t&, Parcel) {}
struct Window {
  static constexpr bool kSerialized = true;
  void close() { gate->acquire(); }
  void take(Parcel) {}
};

}  // namespace weft::behaviour_rref

template <>
struct weft::Codec<weft::behaviour_rref::Parcel> {
  using Parcel = weft::behaviour_rref::Parcel;
  static void encode(Encoder& out, const Parcel&) { out.scalar<uint8_t>(1); }
  static Parcel decode(Decoder& in) {
    in.scalar<uint8_t>();
    ++Parcel::received;
    return {std::shared_ptr<int>(new int(1), [](const int* content) {
      delete content;
      --Parcel::received;
    })};
  }
  static void describe(TypeDescription& out) { out.add("parcel"); }
};

namespace weft::behaviour_rref {

TEST_F(Behaviour31_CallsThroughReferences, ThatAreGivenUpBeforeTheirTurnKeepNoArguments) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const auto window = remote<Window>(group[0], "b");
  const auto first = window.within(60s).rpc_async<&Window::close>();
  const auto cancelled = window.within(60s).rpc_async<&Window::take>(Parcel());
  ASSERT_TRUE(eventually([] { return Parcel::received == 1; }));

  cancelled.cancel();
  EXPECT_TRUE(eventually([] { return Parcel::received == 0; }));

  const auto hurried = window.within(500ms).rpc_async<&Window::take>(Parcel());
  EXPECT_TRUE(eventually([&] { return hurried.ready() && Parcel::received == 0; }));
  EXPECT_FALSE(first.ready());

  closed.release();
  first.wait();
  window.rpc_sync<&Window::take>(Parcel());
  EXPECT_TRUE(eventually([] { return Parcel::received == 0; }));
}

TEST_F(Behaviour31_CallsThroughReferences, ThatAreGivenUpBeforeTheirObjectIsMadeKeepNoArguments) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const auto number = remote<late>(group[0], {"b", 60s}, int64_t{1});
  const auto cancelled = number.within(60s).rpc_async<take_beside>(Parcel());
  ASSERT_TRUE(eventually([] { return Parcel::received == 1; }));

  cancelled.cancel();

  EXPECT_TRUE(eventually([] { return Parcel::received == 0; }));
  closed.release();
  EXPECT_EQ(number.to_here(), 1);
}

Future<int64_t> fails_before_it_returns() { throw std::out_of_range("no future today"); }

TEST_F(Behaviour31_CallsThroughReferences, SeeWhyAnAsynchronousCreationThrew) {
  const auto never = remote<fails_before_it_returns>(group[0], "b");
  const std::function<void()> fetch = [&] { never.to_here(); };
  const std::function<void()> share = [&] { group[0].sync<use_number>("b", never); };

  EXPECT_THAT(fetch, Throws<Error>(Property(&Error::what, HasSubstr("no future today"))));
  EXPECT_THAT(share, Throws<Error>(Property(&Error::what, HasSubstr("no future today"))));
}

Future<int64_t> fails_late() {
  gate->acquire();
  throw std::out_of_range("no future tonight");
}

// The owner has the use before the creator knows that there is nothing to use.
TEST_F(Behaviour31_CallsThroughReferences, ThatWaitForAnObjectSeeWhyItsCreationThrew) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const auto never = remote<fails_late>(group[0], "b");
  const auto use = group[0].async<use_number>({"b", 20s}, never);
  closed.release();

  EXPECT_THAT([&] { use.wait(); },
              Throws<Error>(Property(&Error::what, HasSubstr("no future tonight"))));
}

TEST_F(Behaviour31_CallsThroughReferences, WithATimeLimitOutliveTheReferenceTheyWereMadeFrom) {
  const auto limited = remote<Counted>(group[0], "b", int64_t{5}).within(60s);
  {
    const auto other = remote<Counted>(group[0], "b", int64_t{0});
    ASSERT_TRUE(eventually([&] { return count(1, "rrefs.owned") == 2; }));
  }
  // What a has dropped before is gone before the other one is.
  ASSERT_TRUE(eventually([&] { return count(1, "rrefs.owned") == 1; }));

  EXPECT_EQ(limited.rpc_sync<&Counted::add>(1), 6);
}

TEST_F(Behaviour31_CallsThroughReferences, TakeOptionsInOnePlace) {
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const CallOptions hurried{.timeout = 20ms};

  EXPECT_THAT([&] { group[0].sync<late>({"b", hurried}, 1); }, fails_with(ErrorCode::kTimeout));
  EXPECT_THAT(
      [&] {
        group[0].sync<late>({"b", {.timeout = 20ms}}, 1);
      },
      fails_with(ErrorCode::kTimeout));
  const auto never = remote<late>(group[0], {"b", {.timeout = 60s}}, 1);
  EXPECT_THAT([&] { never.to_here(hurried); }, fails_with(ErrorCode::kTimeout));

  closed.release(3);
  EXPECT_EQ(never.to_here(), 1);
  const auto counted = remote<Counted>(group[0], "b", int64_t{1});
  EXPECT_EQ(counted.with({.timeout = 60s}).rpc_sync<&Counted::add>(1), 2);
  group.shut_down();  // the functions that nobody waits for have left the gate
}

TEST_F(Behaviour31_CallsThroughReferences, AreNamedAfterTheMethodInErrors) {
  struct Failing {
    int64_t now() {
      gate->acquire();
      return 0;
    }
  };
  std::counting_semaphore<> closed(0);
  gate = &closed;
  const auto failing = remote<Failing>(group[0], "b");
  const auto call = failing.within(20ms).rpc_async<&Failing::now>();

  EXPECT_THAT([&] { call.wait(); },
              Throws<Error>(Property(&Error::what, HasSubstr("Failing::now on b"))));
  EXPECT_THAT([&] { call.wait(); },
              Throws<Error>(Property(&Error::what, testing::Not(HasSubstr("weft::detail")))));
  closed.release();
  group.shut_down();  // the function that nobody waits for has left the gate
}

}  // namespace weft::behaviour_rref

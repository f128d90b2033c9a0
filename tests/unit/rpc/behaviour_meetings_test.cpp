// Barriers and all_gather, of all workers and of some.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/agent_core.h"
#include "rpc/reserved_functions.h"
#include "support/loopback_group.h"
#include "wire/frame.h"

namespace weft::behaviour_meetings {

using testing::HasSubstr;
using testing::Not;
using testing::Property;
using testing::Throws;
using namespace std::chrono_literals;
using Names = std::vector<std::string>;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }

class BehaviourOfFour : public testing::Test {
 protected:
  // Runs `part` for some workers at once, each in its own thread.
  void at_once(const std::vector<size_t>& ranks, const std::function<void(Agent&)>& part) {
    std::vector<std::thread> threads;
    for (const size_t rank : ranks) {
      threads.emplace_back([&, rank] { EXPECT_NO_THROW(part(group[rank])); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::vector<size_t> all{0, 1, 2, 3};
  test::LoopbackGroup group{{"a", "b", "c", "d"}};
};

using Behaviour32_Barrier = BehaviourOfFour;

TEST_F(Behaviour32_Barrier, OfAll) {
  std::atomic<int> arrived{0};
  at_once(all, [&](Agent& agent) {
    for (int round = 1; round <= 5; ++round) {
      ++arrived;
      agent.barrier();
      EXPECT_GE(arrived, 4 * round);
    }
  });
  EXPECT_EQ(arrived, 20);
  group.shut_down();
}

TEST_F(Behaviour32_Barrier, OfDisjointSubsets) {
  // Two meet while the others are not there at all,
  at_once({0, 2}, [](Agent& agent) { agent.barrier({"a", "c"}); });
  // and two pairs meet at the same time, named in any order and more than once.
  std::atomic<int> pairs[2]{};
  at_once(all, [&](Agent& agent) {
    const bool first = agent.info().id < 2;
    const bool even = agent.info().id % 2 == 0;
    for (int round = 1; round <= 5; ++round) {
      ++pairs[first];
      agent.barrier(first ? (even ? Names{"a", "b"} : Names{"b", "a", "b"}) : Names{"c", "d"});
      EXPECT_GE(pairs[first], 2 * round);
    }
  });
}

TEST_F(Behaviour32_Barrier, OfOverlappingSubsetsFromSeveralThreads) {
  const std::vector<Names> sets{{"a", "b"}, {"a", "c"}, {"a", "b", "c", "d"}, {"b", "c", "d"}};
  std::atomic<int> met{0};
  std::vector<std::thread> threads;
  for (const Names& set : sets) {
    for (const std::string& name : set) {
      threads.emplace_back([&, name] {
        for (int round = 0; round < 20; ++round)
          group[static_cast<size_t>(name[0] - 'a')].barrier(set);
        ++met;
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(met, 11);
}

TEST_F(Behaviour32_Barrier, OfOneSetFromSeveralThreads) {
  std::atomic<int> arrived{0};
  at_once({0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}, [&](Agent& agent) {
    ++arrived;
    agent.barrier();
    EXPECT_GE(arrived, 4);
  });
  EXPECT_EQ(arrived, 12);
}

TEST_F(Behaviour32_Barrier, OfOneself) {
  group[1].barrier({"b"});
  test::LoopbackGroup alone({"alone"});
  alone[0].barrier();
}

TEST_F(Behaviour32_Barrier, MistakesOfTheCaller) {
  EXPECT_THAT([&] { group[0].barrier({"a", "nobody"}); }, fails_with(ErrorCode::kInvalidArgument));
  EXPECT_THAT([&] { group[0].barrier({"b", "c"}); }, fails_with(ErrorCode::kInvalidArgument));
  at_once({0, 1}, [](Agent& agent) { agent.barrier({"a", "b"}); });
}

TEST_F(Behaviour32_Barrier, WhoseLeaderIsGone) {
  group[0].shutdown_now();

  EXPECT_THAT([&] { group[1].barrier({"a", "b"}); }, fails_with(ErrorCode::kPeerLost));
  at_once({1, 2, 3}, [](Agent& agent) { agent.barrier({"b", "c", "d"}); });
}

// Both wait; the leader's connections break, and then once more.
TEST_F(Behaviour32_Barrier, OutlivesBrokenConnections) {
  std::atomic<int> passed{0};
  std::thread first([&] { group[0].barrier({}, 60s), ++passed; });
  std::thread second([&] { group[1].barrier({}, 60s), ++passed; });
  std::thread third([&] { group[2].barrier({}, 60s), ++passed; });
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(20ms);
    group.network().break_all();
  }
  EXPECT_EQ(passed, 0);

  group[3].barrier({}, 60s);

  for (std::thread* each : {&first, &second, &third}) each->join();
  EXPECT_EQ(passed, 3);
}

// It cannot be reached by one member; all meet when that one tries again.
TEST_F(Behaviour32_Barrier, ThatFailedCanBeTriedAgainWhateverItFailedWith) {
  const Names set{"a", "b"};
  group.network().set_faults([](const transport::FrameInFlight&) {
    return transport::Fault{transport::Fault::Kind::kDropConnection};
  });
  EXPECT_THROW(group[1].barrier(set, 200ms), Error);
  group.network().set_faults({});

  for (int round = 0; round < 3; ++round)
    at_once({0, 1}, [&](Agent& agent) { agent.barrier(set, 20s); });
}

// Connections stand and break over every call: the leader lives, and cannot be met.
TEST_F(Behaviour32_Barrier, OverConnectionsThatBreakWithEveryCallEnds) {
  group.network().set_faults([](const transport::FrameInFlight& frame) {
    const bool call = frame.kind == static_cast<uint8_t>(wire::FrameKind::kCall);
    return transport::Fault{call ? transport::Fault::Kind::kDropConnection
                                 : transport::Fault::Kind::kDeliver};
  });
  EXPECT_THAT([&] { group[1].barrier({"a", "b"}, 0s); }, fails_with(ErrorCode::kOutcomeUnknown));
  group.network().set_faults({});

  at_once({0, 1}, [](Agent& agent) { agent.barrier({"a", "b"}, 20s); });
}

TEST_F(Behaviour32_Barrier, EndsAtOnceWhenAMemberIsGoneAndNamesIt) {
  group[3].shutdown_now();
  const auto began = std::chrono::steady_clock::now();
  const auto fails = [&](size_t rank) {
    EXPECT_THAT([&] { group[rank].barrier({}, 60s); },
                Throws<Error>(testing::AllOf(Property(&Error::code, ErrorCode::kPeerLost),
                                             Property(&Error::what, HasSubstr("d is gone")))));
  };

  std::thread second([&] { fails(1); });
  std::thread third([&] { fails(2); });
  fails(0);

  second.join();
  third.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);  // not the timeout
}

TEST_F(Behaviour32_Barrier, OneThatGaveUpIsNotTakenForPresent) {
  EXPECT_THAT([&] { group[1].barrier({"a", "b"}, 50ms); }, fails_with(ErrorCode::kTimeout));

  EXPECT_THAT([&] { group[0].barrier({"a", "b"}, 50ms); }, fails_with(ErrorCode::kTimeout));

  at_once({0, 1}, [](Agent& agent) { agent.barrier({"a", "b"}, 20s); });
}

int64_t ask_after_barrier(std::string to) {
  current_agent().barrier({"a", "b"});
  return static_cast<int64_t>(to.size());
}

TEST_F(Behaviour32_Barrier, WithinHandlers) {
  const Future<int64_t> first = group[2].async<ask_after_barrier>("a", "x");
  const Future<int64_t> second = group[3].async<ask_after_barrier>("b", "xy");

  EXPECT_EQ(first.wait() + second.wait(), 3);
}

using Behaviour32_AllGather = BehaviourOfFour;

struct Report {
  std::string name;
  std::vector<int> numbers;
  bool operator==(const Report&) const = default;
};

TEST_F(Behaviour32_AllGather, GivesEverybodysValueToEverybody) {
  at_once(all, [](Agent& agent) {
    const int id = agent.info().id;
    for (int round = 0; round < 5; ++round) {
      const auto ids = agent.all_gather(10 * round + id);
      EXPECT_EQ(ids, (std::map<std::string, int>{{"a", 10 * round},
                                                 {"b", 10 * round + 1},
                                                 {"c", 10 * round + 2},
                                                 {"d", 10 * round + 3}}));
    }
    const auto reports = agent.all_gather(Report{agent.info().name, {id, id}});
    EXPECT_EQ(reports.at("c"), (Report{"c", {2, 2}}));
    EXPECT_EQ(reports.size(), 4u);
  });
}

TEST_F(Behaviour32_AllGather, OfASubset) {
  at_once({1, 3}, [](Agent& agent) {
    const auto names = agent.all_gather(agent.info().name, {"b", "d"});
    EXPECT_EQ(names, (std::map<std::string, std::string>{{"b", "b"}, {"d", "d"}}));
  });
}

TEST_F(Behaviour32_AllGather, OfTensors) {
  at_once(all, [](Agent& agent) {
    const at::Tensor mine = at::full({2, 3}, double(agent.info().id));
    const auto values = agent.all_gather(std::vector<at::Tensor>{mine, mine.t(), at::Tensor()});
    for (double id = 0; id < 4; ++id) {
      const auto& theirs = values.at(std::string(1, static_cast<char>('a' + int(id))));
      EXPECT_TRUE(at::equal(theirs.at(0), at::full({2, 3}, id)));
      EXPECT_TRUE(at::equal(theirs.at(1), at::full({3, 2}, id)));
      EXPECT_FALSE(theirs.at(2).defined());
    }
  });
}

TEST_F(Behaviour32_AllGather, OfSparseTensors) {
  at_once({0, 1}, [](Agent& agent) {
    const at::Tensor dense = at::full({3}, double(agent.info().id));
    const at::Tensor sparse =
        at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), dense.slice(0, 0, 1), {5});
    const auto values = agent.all_gather(std::vector<at::Tensor>{sparse, dense}, {"a", "b"});
    EXPECT_TRUE(values.at("b").at(0).is_sparse());
    EXPECT_EQ(values.at("b").at(0).to_dense().sum().item<double>(), 1);
    EXPECT_TRUE(at::equal(values.at("b").at(1), at::ones({3})));
  });
}

TEST_F(Behaviour32_AllGather, TimeoutNamesTheMissing) {
  at_once({0, 2}, [](Agent& agent) {
    try {
      agent.all_gather(1, {}, 200ms);
      ADD_FAILURE() << "met without b and d";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_THAT(error.what(), HasSubstr("] took longer than 0.2 s; missing: b, d"));
    }
  });
  // Others are not harmed.
  at_once({0, 2}, [](Agent& agent) { agent.barrier({"a", "c"}); });
}

// The set of a meeting comes from outside, who comes to it from the connection.
TEST_F(Behaviour32_AllGather, AMeetingThatNoWorkerWouldCallIsRefused) {
  for (const Names& set : {Names{}, Names{"a", "b"}, Names{"b"}, Names{"b", "c"}, Names{"b", "a"},
                           Names{"b", "b"}, Names{"b", "zorro"}}) {
    EXPECT_THAT(([&] { group[0].sync<rpc::sys_gather>("b", set, 0, rpc::Contribution{}); }),
                Throws<Error>())
        << testing::PrintToString(set);
  }
  at_once({0, 1}, [](Agent& agent) { agent.barrier({"a", "b"}); });
}

TEST_F(Behaviour32_AllGather, TimeoutOfZeroWaits) {
  std::atomic<bool> came{false};
  std::thread waits([&] {
    group[0].barrier({"a", "b"}, 0s);
    EXPECT_TRUE(came);
  });
  came = true;
  group[1].barrier({"a", "b"}, 0s);
  waits.join();
}

// Whether another thread can take the lock of the meetings now.
bool meetings_are_unlocked(const std::shared_ptr<rpc::AgentCore>& leader) {
  auto looked = std::make_shared<std::promise<void>>();
  const std::future<void> done = looked->get_future();
  std::thread([leader, looked] {
    (void)leader->meetings().open_meetings();
    looked->set_value();
  }).detach();
  return done.wait_for(10s) == std::future_status::ready;
}

// The network asks for faults on the thread that writes a frame.
TEST(Meetings, AreNotLockedWhileTheirRepliesAreWritten) {
  std::atomic<int> replies{0}, locked{0};
  test::LoopbackGroup group({"a", "b", "c"});
  const auto leader = detail::AgentAccess::core(group[0])->shared_from_this();
  group.network().set_faults([&](const transport::FrameInFlight& frame) {
    if (!frame.from_connector && frame.kind == static_cast<uint8_t>(wire::FrameKind::kReply)) {
      ++replies;
      if (locked == 0 && !meetings_are_unlocked(leader)) ++locked;
    }
    return transport::Fault{};
  });

  std::thread second([&] { group[1].barrier(); });
  std::thread third([&] { group[2].barrier(); });
  group[0].barrier();
  second.join();
  third.join();

  EXPECT_GE(replies, 3);
  EXPECT_EQ(locked, 0);
  group.shut_down();
}

}  // namespace weft::behaviour_meetings

// Making calls, and what comes back.
// SPDX-License-Identifier: BSD-3-Clause
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <unordered_set>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/current_call.h"

namespace weft::behaviour_calls {

using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using namespace std::chrono_literals;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }
int64_t twice(int64_t n) noexcept { return 2 * n; }
std::string where() { return current_agent().info().name; }
WorkerInfo who_calls() { return current_call::caller(); }
bool in_a_call() { return current_call::exists(); }
std::string joined(const std::string& a, std::string b) { return a + b; }
void nothing() {}

// --- 1 -----------------------------------------------------------------------------------------

TEST(Behaviour01_CallsByNameRankInfoAndToSelf, EveryDestinationInEveryMode) {
  test::LoopbackGroup group({"a", "b", "c"});
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor sum = at::full({2, 3}, 2.0);

  for (int from = 0; from < 3; ++from) {
    Agent& agent = group[static_cast<size_t>(from)];
    for (const WorkerInfo& member : agent.members()) {
      const std::string name = member.name;
      const Destination destinations[] = {member.id, name.c_str(), name, std::string_view(name),
                                          member};
      for (const Destination& to : destinations) {
        EXPECT_EQ(agent.sync<where>(to), member.name);
        EXPECT_EQ(agent.async<where>(to).wait(), member.name);
        EXPECT_EQ(agent.sync<who_calls>(to), agent.info());
        EXPECT_TRUE(at::equal(agent.sync<add>(to, x, x), sum));
        EXPECT_TRUE(at::equal(agent.async<add>(to, x, x).wait(), sum));
      }
    }
  }
  group.shut_down();
}

TEST(Behaviour01_CallsByNameRankInfoAndToSelf, ToSelfTakesTheSamePath) {
  test::LoopbackGroup group({"alone"});
  const at::Tensor x = at::ones({4});

  const at::Tensor back = group[0].sync<[](at::Tensor t) { return t.fill_(5); }>(0, x);

  EXPECT_TRUE(at::equal(back, at::full({4}, 5.0)));
  EXPECT_TRUE(at::equal(x, at::ones({4})));
  EXPECT_TRUE(group[0].sync<in_a_call>("alone"));
  EXPECT_FALSE(current_call::exists());
  EXPECT_EQ(group[0].debug_info().counters.at("calls.served"), 2u);
}

TEST(Behaviour01_CallsByNameRankInfoAndToSelf, FunctionsOfEveryShape) {
  test::LoopbackGroup group({"a", "b"});

  group[0].sync<nothing>("b");
  EXPECT_EQ(group[0].sync<joined>("b", "x", std::string("y")), "xy");
  EXPECT_EQ(group[0].sync<twice>("b", 21), 42);
  EXPECT_EQ(group[0].sync<[](bool b) { return !b; }>("b", true), false);
  static_assert(std::is_same_v<decltype(group[0].async<nothing>("b")), Future<void>>);
  static_assert(std::is_same_v<decltype(group[0].sync<joined>("b", "", "")), std::string>);
}

TEST(Behaviour01_CallsByNameRankInfoAndToSelf, WorkersAreKnownByNameAndRank) {
  test::LoopbackGroup group({"a", "b"});

  EXPECT_EQ(group[0].info(), (WorkerInfo{"a", 0}));
  EXPECT_EQ(group[0].info("b"), group[1].info());
  EXPECT_EQ(group[0].info(1), group[1].info());
  EXPECT_NE((WorkerInfo{"b", 0}), group[1].info());
  EXPECT_NE((WorkerInfo{"a", 1}), group[1].info());
  std::unordered_set<WorkerInfo> seen(group[0].members().begin(), group[0].members().end());
  EXPECT_TRUE(seen.contains(group[1].info()));
}

// --- 2 -----------------------------------------------------------------------------------------

TEST(Behaviour01_CallsByNameRankInfoAndToSelf, ADestinationOutlivesTheTextItWasMadeFrom) {
  std::string name = "a worker whose name is too long to be kept inside a string";
  const Destination by_view{std::string_view(name)};
  const Destination by_info{WorkerInfo{name, 3}};

  name.assign(name.size(), '-');

  EXPECT_EQ(by_view.name(), "a worker whose name is too long to be kept inside a string");
  EXPECT_EQ(by_info.name(), by_view.name());
}

TEST(Behaviour02_InvalidDestinations, AreMistakesOfTheCaller) {
  test::LoopbackGroup group({"a", "b"});
  Agent& agent = group[0];
  const WorkerInfo wrong_rank{"b", 0};
  const WorkerInfo wrong_name{"c", 1};
  const Destination wrong[] = {"nobody", "",         -1,         2,
                               30000,    wrong_rank, wrong_name, Destination("b", -1ns)};

  for (const Destination& to : wrong) {
    EXPECT_THAT([&] { agent.sync<twice>(to, 1); }, fails_with(ErrorCode::kInvalidArgument));
    EXPECT_THAT([&] { agent.async<twice>(to, 1); }, fails_with(ErrorCode::kInvalidArgument));
  }
  EXPECT_THAT([&] { agent.info("nobody"); }, fails_with(ErrorCode::kInvalidArgument));
  static_assert(!std::is_convertible_v<std::vector<int>, Destination>);

  EXPECT_EQ(agent.sync<twice>("b", 2), 4);
}

TEST(Behaviour02_InvalidDestinations, AreNamedInTheError) {
  test::LoopbackGroup group({"a", "b"});
  try {
    group[0].sync<twice>("nobody", 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown destination worker \"nobody\""));
    EXPECT_THAT(error.what(), HasSubstr("a, b"));
    EXPECT_FALSE(error.may_have_run());
  }
  EXPECT_THAT([&] { group[0].sync<twice>(7, 1); },
              testing::ThrowsMessage<Error>(HasSubstr("rank 7")));
}

// --- 3 -----------------------------------------------------------------------------------------

int64_t bounce(std::string back_to, int64_t depth) {
  if (depth == 0) return 0;
  Agent& here = current_agent();
  return 1 + here.sync<bounce>(back_to, here.info().name, depth - 1);
}
int64_t relay(std::vector<std::string> path, int64_t n) {
  if (path.empty()) return 2 * n;
  const std::string next = path.back();
  path.pop_back();
  return current_agent().async<relay>(next, path, n + 1).wait();
}

TEST(Behaviour03_NestedCalls, BothDirectionsAndDeep) {
  test::LoopbackGroup group({"a", "b"});

  EXPECT_EQ(group[0].sync<bounce>("b", "a", 1), 1);
  EXPECT_EQ(group[1].sync<bounce>("a", "b", 1), 1);
  EXPECT_EQ(group[0].sync<bounce>("b", "a", 100), 100);
  EXPECT_EQ(group[0].sync<bounce>("a", "a", 20), 20);
  group.shut_down();
}

TEST(Behaviour03_NestedCalls, OverSeveralWorkers) {
  test::LoopbackGroup group({"a", "b", "c"});

  EXPECT_EQ(group[0].sync<relay>("a", std::vector<std::string>{"c", "a", "b", "c", "b"}, 0), 10);
}

TEST(Behaviour03_NestedCalls, MoreAtOnceThanThreads) {
  Options options;
  options.handler_threads = 2;
  test::LoopbackGroup group({"a", "b"}, options);

  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(group[0].async<bounce>("b", "a", 3));

  EXPECT_EQ(wait_all(calls), std::vector<int64_t>(100, 3));
}

TEST(Behaviour03_NestedCalls, RunawayRecursionIsRefused) {
  Options options;
  options.max_call_depth = 20;
  test::LoopbackGroup group({"a", "b"}, options);

  EXPECT_EQ(group[0].sync<bounce>("b", "a", 20), 20);
  EXPECT_THAT([&] { group[0].sync<bounce>("b", "a", 1000); },
              testing::ThrowsMessage<Error>(HasSubstr("kLimitExceeded")));
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
}

// --- 8 -----------------------------------------------------------------------------------------

TEST(Behaviour08_CallAfterShutdown, IsRefused) {
  test::LoopbackGroup group({"a", "b"});
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
  group.shut_down();

  EXPECT_THAT([&] { group[0].sync<twice>("b", 2); }, fails_with(ErrorCode::kShuttingDown));
  EXPECT_THAT([&] { group[0].sync<twice>("a", 2); }, fails_with(ErrorCode::kShuttingDown));
  EXPECT_THAT([&] { group[0].barrier(); }, fails_with(ErrorCode::kShuttingDown));
  const Future<int64_t> later = group[1].async<twice>("a", 2);
  ASSERT_TRUE(later.ready());
  EXPECT_EQ(later.error()->code(), ErrorCode::kShuttingDown);
  EXPECT_FALSE(later.error()->may_have_run());
  EXPECT_EQ(group[0].debug_info().counters.at("calls.outstanding"), 0u);
}

// --- 12 ----------------------------------------------------------------------------------------

TEST(Behaviour12_Stress, Light) {
  test::LoopbackGroup group({"a", "b"});

  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 1000; ++i) calls.push_back(group[0].async<twice>("b", i));
  const std::vector<int64_t> values = wait_all(calls);

  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 2 * i);
}

at::Tensor heavy(at::Tensor tensor) {
  for (int i = 1; i < 100; ++i) tensor = tensor.mul(i).div(i);
  return tensor;
}

TEST(Behaviour12_Stress, Heavy) {
  test::LoopbackGroup group({"a", "b"});

  std::vector<Future<at::Tensor>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(group[0].async<heavy>("b", at::full({100, 100}, i)));
  const std::vector<at::Tensor> values = wait_all(calls);

  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(values[static_cast<size_t>(i)].allclose(
        at::full({100, 100}, double(i)).to(values[0].dtype())));
  }
}

TEST(Behaviour12_Stress, FromSeveralThreadsBothWays) {
  test::LoopbackGroup group({"a", "b"});
  std::atomic<int64_t> wrong{0};

  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 200; ++i) {
        if (group[t % 2].sync<twice>(t % 3 == 0 ? "a" : "b", i) != 2 * i) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0);
}

// --- 16 ----------------------------------------------------------------------------------------

struct OwnProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void fail_with(std::string text) { throw std::invalid_argument(text); }
void fail_with_own() { throw OwnProblem("mine"); }
void fail_with_int() { throw 42; }
void fail_with_weft() { throw Error(ErrorCode::kUnavailable, "no more"); }
void fail_in_torch() { at::add(at::ones({2}), at::ones({3})); }
void fail_on(std::string next) { current_agent().sync<fail_with_own>(next); }
at::Tensor unsendable() { return at::empty({2}, at::TensorOptions().device(at::kMeta)); }

template <typename F>
Error error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "it did not throw";
  return Error(ErrorCode::kInvalidArgument, "");
}

TEST(Behaviour16_RemoteErrors, HaveTypeTextAndWorker) {
  test::LoopbackGroup group({"a", "b"});

  const Error error = error_of([&] { group[0].sync<fail_with>("b", "n is negative"); });

  EXPECT_EQ(error.code(), ErrorCode::kRemoteError);
  EXPECT_EQ(error.worker(), "b");
  EXPECT_EQ(error.remote_type(), "std::invalid_argument");
  EXPECT_EQ(error.remote_text(), "n is negative");
  EXPECT_TRUE(error.may_have_run());
  EXPECT_STREQ(error.what(), "kRemoteError: std::invalid_argument on b: n is negative");
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
}

TEST(Behaviour16_RemoteErrors, TextTravelsUnchanged) {
  test::LoopbackGroup group({"a", "b"});
  const std::string texts[] = {"",
                               "line\nline\r\n\ttab",
                               "quotes \" ' ` and \\ \\n \\x41",
                               "{} {0} %s %n",
                               "caf\xc3\xa9 \xe2\x9c\x93",
                               "\xff\xfe not utf-8",
                               std::string(10'000, 'x')};
  for (const std::string& text : texts) {
    EXPECT_EQ(error_of([&] { group[0].sync<fail_with>("b", text); }).remote_text(), text);
  }
  const std::string endless(1'000'000, 'x');
  const Error shortened = error_of([&] { group[0].sync<fail_with>("b", endless); });
  EXPECT_LT(shortened.remote_text().size(), 100'000u);
  EXPECT_TRUE(endless.starts_with(shortened.remote_text()));
}

TEST(Behaviour16_RemoteErrors, OfAnyType) {
  test::LoopbackGroup group({"a", "b"});

  EXPECT_EQ(error_of([&] { group[0].sync<fail_with_own>("b"); }).remote_type(),
            "weft::behaviour_calls::OwnProblem");
  EXPECT_EQ(error_of([&] { group[0].sync<fail_with_int>("b"); }).remote_type(), "int");
  const Error torch = error_of([&] { group[0].sync<fail_in_torch>("b"); });
  EXPECT_EQ(torch.remote_type(), "c10::Error");
  EXPECT_THAT(torch.remote_text(), HasSubstr("size of tensor"));
  // The function's own error is no statement about this call.
  const Error weft = error_of([&] { group[0].sync<fail_with_weft>("b"); });
  EXPECT_EQ(weft.code(), ErrorCode::kRemoteError);
  EXPECT_EQ(weft.remote_type(), "weft::Error");
  EXPECT_THAT(weft.remote_text(), HasSubstr("kUnavailable: no more"));
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
}

TEST(Behaviour16_RemoteErrors, ThroughSeveralWorkersNameThemAll) {
  test::LoopbackGroup group({"a", "b", "c"});

  const Error error = error_of([&] { group[0].sync<fail_on>("b", "c"); });

  EXPECT_EQ(error.worker(), "b");
  EXPECT_THAT(error.what(), HasSubstr("OwnProblem on c: mine"));
}

TEST(Behaviour16_RemoteErrors, ValueThatCannotTravel) {
  test::LoopbackGroup group({"a", "b"});
  const at::Tensor meta = unsendable();

  EXPECT_THAT([&] { group[0].async<add>("b", meta, meta); },
              fails_with(ErrorCode::kInvalidArgument));
  const Error result = error_of([&] { group[0].sync<unsendable>("b"); });
  EXPECT_EQ(result.code(), ErrorCode::kRemoteError);
  EXPECT_THAT(result.remote_text(), HasSubstr("it is on meta"));
  EXPECT_EQ(group[0].sync<twice>("b", 2), 4);
}

}  // namespace weft::behaviour_calls

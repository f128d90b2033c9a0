// What users rely on of futures and promises.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/future.h"

namespace weft::behaviour_futures {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using namespace std::chrono_literals;

auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }
Error some_error() { return Error(ErrorCode::kLimitExceeded, "too much"); }

int64_t twice(int64_t n) { return 2 * n; }
int64_t refuse(int64_t n) {
  if (n < 0) throw std::invalid_argument("negative");
  return n;
}
Promise<int64_t>* held = nullptr;
Future<int64_t> answered_by_the_test() { return held->future(); }

TEST(Behaviour18_ThenChains, BeforeAndAfterTheOutcome) {
  Promise<int> promise;
  const auto text = promise.future()
                        .then([](int n) { return n + 1; })
                        .then([](int n) { return 1.5 * n; })
                        .then([](double x) { return std::to_string(x); });
  EXPECT_FALSE(text.ready());

  promise.set_value(1);

  EXPECT_EQ(text.wait(), "3.000000");
  EXPECT_EQ(promise.future().then([](int n) { return n * 10; }).wait(), 10);
}

TEST(Behaviour18_ThenChains, InOrderOfAttachment) {
  Promise<void> promise;
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) promise.future().then([&order, i] { order.push_back(i); });

  promise.set_value();
  promise.future().on_ready([&](const Future<void>&) { order.push_back(3); });

  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST(Behaviour18_ThenChains, OverFuturesAndVoid) {
  Promise<int> outer;
  Promise<std::string> inner;
  const Future<std::string> flat = outer.future().then([&](int) { return inner.future(); });
  const Future<void> nothing = flat.then([](const std::string&) {});
  const Future<int> again = nothing.then([] { return 7; });
  static_assert(std::is_same_v<decltype(flat), const Future<std::string>>);

  outer.set_value(1);
  EXPECT_FALSE(flat.ready());
  inner.set_value("in");

  EXPECT_EQ(flat.wait(), "in");
  EXPECT_EQ(again.wait(), 7);
}

TEST(Behaviour18_ThenChains, OverCallsThatMayBlock) {
  test::LoopbackGroup group({"a", "b"});
  Agent& a = group[0];

  EXPECT_EQ(a.async<twice>("b", 1).then([&](int64_t n) { return a.async<twice>("b", n); }).wait(),
            4);
  EXPECT_EQ(a.async<twice>("b", 1).then([&](int64_t n) { return a.sync<twice>("b", n); }).wait(),
            4);
  Future<int64_t> chain = a.async<twice>("b", 0);
  for (int i = 0; i < 50; ++i) {
    chain = chain.then([&a](int64_t n) { return a.async<twice>("b", n + 1); });
  }
  EXPECT_EQ(chain.wait(), (int64_t{1} << 51) - 2);
}

TEST(Behaviour18_CallbackError, IsTheNewFuturesOutcome) {
  Promise<int> promise;
  const Future<int> weft = promise.future().then([](int) -> int { throw some_error(); });
  const Future<int> other =
      promise.future().then([](int) -> int { throw std::out_of_range("far out"); });
  const Future<void> odd = promise.future().then([](int) { throw 42; });

  promise.set_value(1);

  EXPECT_THAT([&] { weft.wait(); }, fails_with(ErrorCode::kLimitExceeded));
  EXPECT_THAT([&] { other.wait(); }, testing::ThrowsMessage<std::exception>(HasSubstr("far out")));
  EXPECT_EQ(other.error()->code(), ErrorCode::kCallbackFailed);
  EXPECT_THAT(other.error()->what(), HasSubstr("std::out_of_range: far out"));
  EXPECT_EQ(odd.error()->code(), ErrorCode::kCallbackFailed);
  EXPECT_EQ(promise.future().wait(), 1);
}

TEST(Behaviour18_CallbackError, SkipsWhatFollowsButNotOnReady) {
  Promise<int> promise;
  std::atomic<int> ran{0};
  const Future<int> end =
      promise.future().then([&](int n) { return ++ran, n; }).then([&](int n) { return ++ran, n; });
  int told = 0;
  end.on_ready([&](const Future<int>& done) { told += done.error() ? 1 : 0; });
  end.on_ready([](const Future<int>&) { throw std::runtime_error("nobody hears this"); });
  end.on_ready([&](const Future<int>&) { ++told; });

  promise.set_error(some_error());

  EXPECT_THAT([&] { end.wait(); }, fails_with(ErrorCode::kLimitExceeded));
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(told, 2);
}

TEST(Behaviour18_CallbackError, OfARemoteCall) {
  test::LoopbackGroup group({"a", "b"});
  bool ran = false;

  const Future<int> end =
      group[0].async<refuse>("b", -1).then([&](int64_t) { return ran = true, 1; });

  EXPECT_THAT([&] { end.wait(); }, fails_with(ErrorCode::kRemoteError));
  EXPECT_FALSE(ran);
}

TEST(Behaviour18_WaitTwice, GivesTheSameOutcome) {
  test::LoopbackGroup group({"a", "b"});
  const Future<int64_t> good = group[0].async<twice>("b", 4);
  const Future<int64_t> copy = good;
  const Future<int64_t> bad = group[0].async<refuse>("b", -1);

  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(good.wait(), 8);
    EXPECT_EQ(copy.wait(), 8);
    EXPECT_THAT([&] { bad.wait(); }, fails_with(ErrorCode::kRemoteError));
  }
  EXPECT_FALSE(good.error().has_value());
}

TEST(Behaviour18_WaitTwice, FromManyThreads) {
  test::LoopbackGroup group({"a", "b"});
  Promise<int64_t> answer;
  held = &answer;
  const Future<int64_t> call = group[0].async<answered_by_the_test>("b");
  std::atomic<int> right{0};

  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { right += call.wait() == 9; });
    threads.emplace_back([&] { call.then([&](int64_t n) { right += n == 9; }).wait(); });
  }
  answer.set_value(9);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(right, 16);
}

TEST(Behaviour18_WaitTwice, WhoGivesUpLeavesTheOthersWaiting) {
  test::LoopbackGroup group({"a", "b"});
  Promise<int64_t> answer;
  held = &answer;
  const Future<int64_t> call = group[0].async<answered_by_the_test>("b");
  std::atomic<int> right{0};

  std::vector<std::thread> patient, hasty;
  for (int i = 0; i < 3; ++i) patient.emplace_back([&] { right += call.wait() == 9; });
  for (int i = 0; i < 3; ++i) {
    hasty.emplace_back([&] {
      for (int j = 0; j < 100; ++j) EXPECT_FALSE(call.wait_for(50us));
    });
  }
  // Who receives changes with every one of these.
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(group[0].sync<twice>("b", i), 2 * i);
  for (std::thread& thread : hasty) thread.join();
  answer.set_value(9);
  for (std::thread& thread : patient) thread.join();

  EXPECT_EQ(right, 3);
}

TEST(Behaviour18_WaitTwice, EveryContinuationRunsOnce) {
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise;
    const Future<int> future = promise.future();
    std::atomic<int> ran{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 10; ++j) future.on_ready([&](const Future<int>&) { ++ran; });
      });
    }
    promise.set_value(1);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(ran, 20);
  }
}

TEST(Behaviour18_SetTwice, KeepsTheFirstOutcome) {
  Promise<int> good;
  good.set_value(1);
  EXPECT_THAT([&] { good.set_value(2); }, fails_with(ErrorCode::kInvalidArgument));
  EXPECT_THAT([&] { good.set_error(some_error()); }, fails_with(ErrorCode::kInvalidArgument));
  EXPECT_EQ(good.future().wait(), 1);

  Promise<int> bad;
  bad.set_error(some_error());
  EXPECT_THAT([&] { bad.set_value(2); }, fails_with(ErrorCode::kInvalidArgument));
  EXPECT_THAT([&] { bad.future().wait(); }, fails_with(ErrorCode::kLimitExceeded));
}

TEST(Behaviour18_SetTwice, PromiseWithoutOutcomeIsBroken) {
  auto promise = std::make_unique<Promise<int>>();
  const Future<int> future = promise->future();
  const Future<int> later = future.then([](int n) { return n; });

  Promise<int> moved = std::move(*promise);
  promise.reset();
  EXPECT_FALSE(future.ready());
  moved = Promise<int>();

  EXPECT_THAT([&] { future.wait(); }, fails_with(ErrorCode::kBrokenPromise));
  EXPECT_THAT([&] { later.wait(); }, fails_with(ErrorCode::kBrokenPromise));
}

TEST(Behaviour18_WaitAll, GivesValuesInOrder) {
  Promise<int> second;
  const std::vector<Future<int>> futures{make_ready_future(1), second.future(),
                                         make_ready_future(3)};
  std::thread setter([&] { second.set_value(2); });

  EXPECT_THAT(wait_all(futures), ElementsAre(1, 2, 3));

  setter.join();
  EXPECT_TRUE(wait_all(std::vector<Future<int>>{}).empty());
  Promise<void> nothing;
  nothing.set_value();
  wait_all(std::vector<Future<void>>{nothing.future(), nothing.future()});
}

TEST(Behaviour18_WaitAll, ExitsEarlyAtAnError) {
  test::LoopbackGroup group({"a", "b"});
  Promise<int64_t> answer;
  held = &answer;
  const std::vector<Future<int64_t>> calls{group[0].async<refuse>("b", 1),
                                           group[0].async<refuse>("b", -1),
                                           group[0].async<answered_by_the_test>("b")};

  EXPECT_THAT([&] { wait_all(calls); }, fails_with(ErrorCode::kRemoteError));

  EXPECT_FALSE(calls[2].ready());
  answer.set_value(3);
  EXPECT_EQ(calls[2].wait(), 3);
}

TEST(Behaviour18_WaitAny, IsOneThatIsReady) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());

  std::thread setter([&] { promises[1].set_error(some_error()); });
  EXPECT_EQ(wait_any(futures), 1u);
  setter.join();
  EXPECT_EQ(wait_any(futures), 1u);
  promises[0].set_value(1);
  promises[2].set_value(2);

  EXPECT_EQ(wait_any(futures), 0u);
}

TEST(Behaviour18_WaitAny, OfCalls) {
  test::LoopbackGroup group({"a", "b"});
  Promise<int64_t> answer;
  held = &answer;
  const std::vector<Future<int64_t>> calls{group[0].async<answered_by_the_test>("b"),
                                           group[0].async<twice>("b", 1)};

  EXPECT_EQ(wait_any(calls), 1u);
  answer.set_value(3);
  EXPECT_EQ(calls[0].wait(), 3);
}

TEST(Behaviour18_WaitFor, GoesOnAfterItsLimit) {
  test::LoopbackGroup group({"a", "b"});
  Promise<int64_t> answer;
  held = &answer;
  const Future<int64_t> call = group[0].async<answered_by_the_test>("b");

  EXPECT_FALSE(call.wait_for(2ms));
  EXPECT_FALSE(call.ready());
  answer.set_value(3);

  EXPECT_TRUE(call.wait_for(10s));
  EXPECT_EQ(call.wait(), 3);
}

}  // namespace weft::behaviour_futures

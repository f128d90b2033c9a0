// SPDX-License-Identifier: BSD-3-Clause
#include "weft/future.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/log.h"

namespace weft {
namespace {

using namespace std::chrono_literals;

const Error kLost(ErrorCode::kPeerLost, "gone");

template <typename T>
ErrorCode code_of(const Future<T>& future) {
  try {
    future.wait();
    ADD_FAILURE() << "no error";
    return {};
  } catch (const Error& error) {
    return error.code();
  }
}

TEST(Future, GivesTheValueAsOftenAsAsked) {
  Promise<std::string> promise;
  const Future<std::string> future = promise.future();
  EXPECT_FALSE(future.ready());

  promise.set_value("done");

  EXPECT_TRUE(future.ready());
  EXPECT_EQ(future.wait(), "done");
  EXPECT_EQ(future.wait(), "done");
  EXPECT_EQ(future.error(), std::nullopt);
}

TEST(Future, GivesTheErrorAsOftenAsAsked) {
  Promise<int> promise;
  const Future<int> future = promise.future();

  promise.set_error(kLost);

  EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
  EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
  EXPECT_EQ(future.error()->message(), "gone");
}

TEST(Future, OfVoidHasAnOutcomeToo) {
  Promise<void> promise;
  const Future<void> future = promise.future();

  promise.set_value();

  EXPECT_NO_THROW(future.wait());
}

TEST(Future, AMoveOnlyHandleMovesTheValueOut) {
  Promise<std::vector<int>> promise;
  Future<std::vector<int>> future = promise.future();
  promise.set_value(std::vector<int>(1000, 7));
  { Promise<std::vector<int>> gone = std::move(promise); }

  const std::vector<int> value = std::move(future).wait();

  EXPECT_EQ(value.size(), 1000u);
}

TEST(Future, WaitForComesBackWithoutAnOutcome) {
  Promise<int> promise;

  EXPECT_FALSE(promise.future().wait_for(1ms));
  promise.set_value(1);
  EXPECT_TRUE(promise.future().wait_for(0ms));
}

TEST(Promise, ASecondOutcomeIsAMistake) {
  Promise<int> promise;
  promise.set_value(1);

  EXPECT_THROW(promise.set_value(2), Error);
  EXPECT_THROW(promise.set_error(kLost), Error);

  EXPECT_EQ(promise.future().wait(), 1);
}

TEST(Promise, DestroyedWithoutOutcomeIsBroken) {
  std::optional<Promise<int>> promise(std::in_place);
  const Future<int> future = promise->future();
  const Future<int> derived = future.then([](int n) { return n; });

  promise.reset();

  EXPECT_EQ(code_of(future), ErrorCode::kBrokenPromise);
  EXPECT_EQ(code_of(derived), ErrorCode::kBrokenPromise);
}

TEST(Promise, AssignedOverIsBroken) {
  Promise<int> promise;
  const Future<int> future = promise.future();

  promise = Promise<int>();

  EXPECT_EQ(code_of(future), ErrorCode::kBrokenPromise);
}

struct Uncopyable {
  Uncopyable() = default;
  Uncopyable(const Uncopyable&) { throw std::runtime_error("cannot be copied"); }
  Uncopyable(Uncopyable&&) noexcept = default;
};

TEST(Promise, AValueThatCannotBeCopiedLeavesItWithoutOutcome) {
  Promise<Uncopyable> promise;
  const Future<Uncopyable> future = promise.future();
  const Uncopyable value;

  EXPECT_THROW(promise.set_value(value), std::runtime_error);
  EXPECT_FALSE(future.ready());
  promise.set_error(kLost);

  EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
}

TEST(Then, RunsWithTheValue) {
  Promise<int> promise;
  const Future<std::string> text = promise.future().then([](int n) { return std::to_string(n); });
  EXPECT_FALSE(text.ready());

  promise.set_value(5);

  EXPECT_EQ(text.wait(), "5");
}

TEST(Then, RunsAtOnceWhenThereIsAnOutcome) {
  const Future<int> future = make_ready_future(2).then([](int n) { return 3 * n; });

  EXPECT_TRUE(future.ready());
  EXPECT_EQ(future.wait(), 6);
}

TEST(Then, PassesAnErrorOnWithoutRunning) {
  Promise<int> promise;
  bool ran = false;
  const Future<void> future = promise.future().then([&ran](int) { ran = true; });

  promise.set_error(kLost);

  EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
  EXPECT_FALSE(ran);
}

TEST(Then, WhatItThrowsIsTheOutcome) {
  const Future<int> ready = make_ready_future(1);

  const Future<int> ours = ready.then([](int) -> int { throw kLost; });
  const Future<int> theirs = ready.then([](int) -> int { throw std::runtime_error("oops"); });
  const Future<int> no_exception = ready.then([](int) -> int { throw 5; });

  EXPECT_EQ(code_of(ours), ErrorCode::kPeerLost);
  EXPECT_THROW(theirs.wait(), std::runtime_error);
  EXPECT_EQ(theirs.error()->code(), ErrorCode::kCallbackFailed);
  EXPECT_NE(theirs.error()->message().find("oops"), std::string::npos);
  EXPECT_THROW(no_exception.wait(), int);
  EXPECT_EQ(no_exception.error()->code(), ErrorCode::kCallbackFailed);
}

TEST(Then, AFutureOfAFutureIsAFuture) {
  Promise<int> outer;
  Promise<std::string> inner;
  const Future<std::string> flat = outer.future().then([&inner](int) { return inner.future(); });

  outer.set_value(1);
  EXPECT_FALSE(flat.ready());
  inner.set_value("inner");

  EXPECT_EQ(flat.wait(), "inner");
}

TEST(Then, AnErrorOfTheInnerFutureIsTheOutcome) {
  Promise<int> inner;
  const Future<int> flat = make_ready_future(1).then([&inner](int) { return inner.future(); });

  inner.set_error(kLost);

  EXPECT_EQ(code_of(flat), ErrorCode::kPeerLost);
}

TEST(Then, AnInnerValueThatCannotBeCopiedIsAnError) {
  Promise<Uncopyable> inner;
  const Future<Uncopyable> flat =
      make_ready_future(1).then([&inner](int) { return inner.future(); });

  inner.set_value(Uncopyable());

  EXPECT_TRUE(flat.wait_for(5s)) << "nobody ever gives it an outcome";
}

TEST(Then, ChainsOfAnyLengthRunInOrder) {
  Promise<int> promise;
  Future<int> future = promise.future();
  for (int i = 0; i < 1000; ++i) future = future.then([](int n) { return n + 1; });

  promise.set_value(0);

  EXPECT_EQ(future.wait(), 1000);
}

TEST(OnReady, RunsForEitherOutcomeInTheOrderGiven) {
  Promise<int> promise;
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) {
    promise.future().on_ready([&order, i](const Future<int>& done) {
      EXPECT_TRUE(done.error());
      order.push_back(i);
    });
  }

  promise.set_error(kLost);

  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(OnReady, WhatItThrowsHurtsNobody) {
  Promise<int> promise;
  bool second = false;
  promise.future().on_ready([](const Future<int>&) { throw std::runtime_error("ignored"); });
  promise.future().on_ready([&second](const Future<int>&) { second = true; });

  promise.set_value(1);

  EXPECT_TRUE(second);
}

TEST(WaitAll, GivesTheValuesInOrder) {
  Promise<int> first, second;
  const std::vector futures{first.future(), second.future()};

  second.set_value(2);
  first.set_value(1);

  EXPECT_EQ(wait_all(futures), (std::vector<int>{1, 2}));
}

TEST(WaitAll, ThrowsTheFirstErrorWithoutWaitingForTheRest) {
  Promise<int> first, never;
  const std::vector futures{first.future(), never.future()};

  first.set_error(kLost);

  EXPECT_THROW(wait_all(futures), Error);
}

TEST(WaitAny, FindsTheOneThatIsReady) {
  Promise<int> never, done;
  const std::vector futures{never.future(), done.future()};

  done.set_value(1);

  EXPECT_EQ(wait_any(futures), 1u);
}

TEST(WaitAny, AnErrorIsAnOutcomeToo) {
  Promise<int> never, failed;
  const std::vector futures{never.future(), failed.future()};
  std::thread settles([&failed] { failed.set_error(kLost); });

  EXPECT_EQ(wait_any(futures), 1u);
  settles.join();
}

TEST(WaitAny, OfNothingIsRefused) { EXPECT_THROW(wait_any(std::vector<Future<int>>()), Error); }

// Counts the continuations that others attach.
class CountedFuture final : public detail::FutureState<int> {
 public:
  int attached = 0;

 protected:
  void on_attached() override { ++attached; }
};

TEST(WaitAny, LeavesOneContinuationHoweverOftenItIsCalled) {
  auto pending = detail::make_ref<CountedFuture>();
  for (int round = 0; round < 100; ++round) {
    Promise<int> other;
    const std::vector futures{detail::FutureAccess::make<int>(pending), other.future()};
    std::thread settles([&other] { other.set_value(1); });

    EXPECT_EQ(wait_any(futures), 1u);

    settles.join();
  }
  EXPECT_LE(pending->attached, 1);
  pending->settle_value(0);
}

TEST(WaitAny, ManyThreadsEachGetTheirOwn) {
  constexpr int kThreads = 4, kFutures = 50;
  std::vector<std::vector<Promise<int>>> promises(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> taken{0};
  for (auto& mine : promises) mine.resize(kFutures);
  for (auto& mine : promises) {
    std::vector<Future<int>> futures;
    for (auto& each : mine) futures.push_back(each.future());
    threads.emplace_back([futures = std::move(futures), &taken]() mutable {
      while (!futures.empty()) {
        futures.erase(futures.begin() + static_cast<ptrdiff_t>(wait_any(futures)));
        ++taken;
      }
    });
  }

  for (int i = 0; i < kFutures; ++i) {
    for (auto& mine : promises) mine[static_cast<size_t>(i)].set_value(i);
  }

  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, kThreads * kFutures);
}

TEST(Future, WhatACallbackThrowsIsLogged) {
  std::vector<std::string> lines;
  set_log_sink([&lines](LogLevel, std::string_view line) { lines.emplace_back(line); });
  Promise<int> promise;
  promise.future().on_ready([](const Future<int>&) { throw std::runtime_error("over there"); });

  promise.set_value(1);

  set_log_sink({});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("std::runtime_error: over there"), std::string::npos) << lines[0];
}

TEST(Future, ThreadsThatWaitAllGetTheOutcome) {
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise;
    std::atomic<int> sum{0};
    std::atomic<int> continued{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([future = promise.future(), &sum, &continued] {
        future.on_ready([&continued](const Future<int>&) { ++continued; });
        sum += future.wait();
      });
    }

    promise.set_value(5);
    for (std::thread& thread : threads) thread.join();

    ASSERT_EQ(sum, 20);
    ASSERT_EQ(continued, 4);
  }
}

TEST(Promise, OneOfManyThreadsDecides) {
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise;
    const Future<int> future = promise.future();
    std::atomic<int> decided{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&promise, &decided, t] {
        try {
          promise.set_value(t);
          ++decided;
        } catch (const Error&) {
        }
      });
    }
    for (std::thread& thread : threads) thread.join();

    ASSERT_EQ(decided, 1);
    ASSERT_TRUE(future.wait_for(0s));
  }
}

}  // namespace
}  // namespace weft

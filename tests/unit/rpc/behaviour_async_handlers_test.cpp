// Functions that return a future answer when it has its outcome.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/agent_core.h"
#include "support/loopback_group.h"
#include "support/scenario.h"
#include "weft/current_call.h"

namespace weft::behaviour_async_handlers {

using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }
int64_t twice(int64_t n) { return 2 * n; }
int64_t refuse(int64_t) { throw std::invalid_argument("not this one"); }

Future<int64_t> simple(int64_t n) { return make_ready_future(n + 1); }
Future<void> nothing() {
  Promise<void> done;
  done.set_value();
  return done.future();
}
Future<at::Tensor> chained(std::string to, at::Tensor x) {
  return current_agent().async<add>(to, x, x).then(
      [x](const at::Tensor& sum) { return at::add(sum, x); });
}
Future<int64_t> nested(std::vector<std::string> path, int64_t n) {
  if (path.empty()) return make_ready_future(std::move(n));
  const std::string next = path.back();
  path.pop_back();
  return current_agent().async<nested>(next, path, n + 1).then([](int64_t m) { return 10 * m; });
}
Future<int64_t> chain_of_calls(std::string to, int64_t n, int64_t times) {
  Future<int64_t> last = make_ready_future(std::move(n));
  for (int64_t i = 0; i < times; ++i) {
    last = last.then([to](int64_t m) { return current_agent().async<twice>(to, m); });
  }
  return last;
}

// The sum of `count` calls that are all under way at once.
Future<int64_t> fan_out(std::string to, int64_t count) {
  struct Sum {
    std::atomic<int64_t> left;
    std::atomic<int64_t> value{0};
    Promise<int64_t> promise;
  };
  auto sum = std::make_shared<Sum>();
  sum->left = count;
  for (int64_t i = 0; i < count; ++i) {
    current_agent().async<simple>(to, i).on_ready([sum](const Future<int64_t>& part) {
      sum->value += part.wait();
      if (--sum->left == 0) sum->promise.set_value(sum->value.load());
    });
  }
  return sum->promise.future();
}
Future<int64_t> fan_out_twice(std::string to, std::string then_to, int64_t count) {
  return current_agent().async<fan_out>(to, then_to, count).then([](int64_t n) {
    return n + 1000;
  });
}

Future<int64_t> throws_at_once() { throw std::out_of_range("before the future"); }
Future<int64_t> fails_later() {
  Promise<int64_t> promise;
  promise.set_exception(std::make_exception_ptr(std::range_error("in the future")));
  return promise.future();
}
Future<int64_t> fails_with_weft_error() {
  Promise<int64_t> promise;
  promise.set_error(Error(ErrorCode::kLimitExceeded, "full"));
  return promise.future();
}
Future<int64_t> breaks_its_promise() { return Promise<int64_t>().future(); }
Future<int64_t> passes_on_an_error(std::string to) {
  return current_agent().async<refuse>(to, 1).then([](int64_t n) { return n; });
}
Future<int64_t> fails_in_a_callback(std::string to) {
  return current_agent().async<twice>(to, 1).then(
      [](int64_t) -> int64_t { throw std::length_error("late"); });
}

std::mutex waiting_mutex;
std::vector<Promise<int64_t>> waiting;
Future<int64_t> waits() {
  std::lock_guard lock(waiting_mutex);
  return waiting.emplace_back().future();
}
size_t waiting_count() {
  std::lock_guard lock(waiting_mutex);
  return waiting.size();
}
std::vector<Promise<int64_t>> take_waiting() {
  std::lock_guard lock(waiting_mutex);
  return std::move(waiting);
}

uint64_t thread_number() { return std::hash<std::thread::id>()(std::this_thread::get_id()); }
uint64_t thread_of_a_longer_one() {
  const auto until = std::chrono::steady_clock::now() + 60us;
  while (std::chrono::steady_clock::now() < until) {
  }
  return thread_number();
}
// A short function runs on the thread that read the call. Some in a row: others may have the CPU
// now and then.
bool runs_where_it_was_read(Agent& caller, const std::string& to) {
  return eventually([&] {
    for (int i = 0; i < 20; ++i) {
      if (caller.sync<thread_number>(to) != caller.sync<thread_of_a_longer_one>(to)) return false;
    }
    return true;
  });
}

std::string failure_of(Agent& agent, const std::function<void(Agent&)>& call) {
  try {
    call(agent);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRemoteError);
    return error.what();
  }
  ADD_FAILURE() << "it did not throw";
  return {};
}

class Behaviour19_AsynchronousHandlers : public testing::Test {
 protected:
  test::LoopbackGroup group{{"a", "b", "c"}};
  Agent& a = group[0];
};

TEST_F(Behaviour19_AsynchronousHandlers, Simple) {
  static_assert(std::is_same_v<decltype(a.async<simple>("b", 1)), Future<int64_t>>);
  for (const char* to : {"a", "b", "c"}) {
    EXPECT_EQ(a.sync<simple>(to, 1), 2);
    EXPECT_EQ(a.async<simple>(to, 1).wait(), 2);
    a.sync<nothing>(to);
  }
}

TEST_F(Behaviour19_AsynchronousHandlers, Chained) {
  EXPECT_TRUE(at::equal(a.sync<chained>("b", "c", at::ones({2})), at::full({2}, 3.0)));
  EXPECT_TRUE(at::equal(a.sync<chained>("b", "b", at::ones({2})), at::full({2}, 3.0)));
  EXPECT_EQ(a.sync<chain_of_calls>("b", "c", 1, 10), 1024);
}

TEST_F(Behaviour19_AsynchronousHandlers, Nested) {
  EXPECT_EQ(a.sync<nested>("b", std::vector<std::string>{"b", "a", "c"}, 0), 3000);
}

TEST_F(Behaviour19_AsynchronousHandlers, FanOut) {
  EXPECT_EQ(a.sync<fan_out>("b", "c", 100), 5050);
  EXPECT_EQ(a.sync<fan_out>("a", "a", 10), 55);
  EXPECT_EQ(a.sync<fan_out_twice>("b", "c", "a", 10), 1055);
}

TEST_F(Behaviour19_AsynchronousHandlers, Raise) {
  EXPECT_THAT(failure_of(a, [](Agent& agent) { agent.sync<throws_at_once>("b"); }),
              HasSubstr("std::out_of_range on b: before the future"));
  EXPECT_THAT(failure_of(a, [](Agent& agent) { agent.sync<fails_later>("b"); }),
              HasSubstr("std::range_error on b: in the future"));
  EXPECT_THAT(failure_of(a, [](Agent& agent) { agent.sync<fails_with_weft_error>("b"); }),
              HasSubstr("weft::Error on b: kLimitExceeded: full"));
  EXPECT_THAT(failure_of(a, [](Agent& agent) { agent.sync<fails_in_a_callback>("b", "c"); }),
              HasSubstr("std::length_error on b: late"));
  EXPECT_THAT(failure_of(a, [](Agent& agent) { agent.sync<passes_on_an_error>("b", "c"); }),
              HasSubstr("std::invalid_argument on c: not this one"));
  EXPECT_EQ(a.sync<simple>("b", 1), 2);
}

TEST_F(Behaviour19_AsynchronousHandlers, BrokenPromise) {
  EXPECT_THAT(failure_of(a, [](Agent& agent) { agent.sync<breaks_its_promise>("b"); }),
              HasSubstr("kBrokenPromise"));

  const Future<int64_t> call = a.async<waits>("b");
  ASSERT_TRUE(eventually([] { return waiting_count() == 1; }));
  take_waiting();
  EXPECT_THAT(failure_of(a, [&](Agent&) { call.wait(); }), HasSubstr("kBrokenPromise"));
}

TEST_F(Behaviour19_AsynchronousHandlers, AnsweredFromAnyThread) {
  const Future<int64_t> call = a.async<waits>("b");
  ASSERT_TRUE(eventually([] { return waiting_count() == 1; }));

  std::thread([promises = take_waiting()]() mutable { promises[0].set_value(5); }).join();

  EXPECT_EQ(call.wait(), 5);
}

TEST_F(Behaviour19_AsynchronousHandlers, OneThatWaitsSendsNoOtherCallToAnotherThread) {
  const Future<int64_t> call = a.async<waits>("b");
  ASSERT_TRUE(eventually([] { return waiting_count() == 1; }));

  EXPECT_TRUE(runs_where_it_was_read(a, "b"));

  take_waiting()[0].set_value(5);
  call.wait();
}

// As a worker that has nothing more to do itself waits for the others.
TEST_F(Behaviour19_AsynchronousHandlers, AMeetingThatWaitsSendsNoCallToAnotherThread) {
  std::thread early([&] { group[2].barrier(); });
  ASSERT_TRUE(eventually([&] {
    using CallsOf = rpc::AgentCore::CallsOf;
    return !detail::AgentAccess::core(a)->calls_in_flight(CallsOf::kEverybody).empty();
  }));

  EXPECT_TRUE(runs_where_it_was_read(group[2], "a"));

  std::thread second([&] { group[1].barrier(); });
  a.barrier();
  early.join();
  second.join();
}

TEST(Behaviour19_AsynchronousHandlersHoldNoThread, ManyWaitWhileOthersAreServed) {
  Options options;
  options.handler_threads = 1;
  options.max_handler_threads = 8;
  test::LoopbackGroup group({"a", "b"}, options);
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 500; ++i) calls.push_back(group[0].async<waits>("b"));
  ASSERT_TRUE(eventually([] { return waiting_count() == 500; }));

  EXPECT_EQ(group[0].sync<twice>("b", 4), 8);
  EXPECT_TRUE(
      eventually([&] { return group[1].debug_info().counters.at("calls.serving") == 500; }));
  for (auto& promise : take_waiting()) promise.set_value(1);

  EXPECT_EQ(wait_all(calls), std::vector<int64_t>(500, 1));
}

}  // namespace weft::behaviour_async_handlers

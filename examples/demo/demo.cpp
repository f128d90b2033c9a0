// Two workers that call each other: kinds of calls, kinds of errors, and what calls cost.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <weft/rpc.h>

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// --- what the workers can do for each other ---------------------------------------------------

void nop() {}

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a + b; }

at::Tensor negate(const at::Tensor& x) { return x.neg(); }

struct Sample {  // an aggregate travels as it is: no macro, no registration
  std::string name;
  std::vector<double> values;
  std::optional<int64_t> label;
  at::Tensor image;
};

Sample scaled(Sample sample, double by) {
  for (double& value : sample.values) value *= by;
  sample.image = sample.image * by;
  return sample;
}

int64_t square_root(int64_t n) {
  if (n < 0) throw std::domain_error("no root of a negative number: " + std::to_string(n));
  int64_t root = 0;
  while ((root + 1) * (root + 1) <= n) ++root;
  return root;
}

// Blocks inside a function: calls back to whoever called, `depth` times.
int64_t ping_pong(int64_t depth) {
  if (depth == 0) return 0;
  return 1 + weft::rpc_sync<ping_pong>(weft::current_call::caller(), depth - 1);
}

// An asynchronous function: returns a future and holds no thread while it waits.
weft::Future<int64_t> root_plus_one(std::string ask, int64_t n) {
  return weft::rpc_async<square_root>(ask, n).then([](int64_t root) { return root + 1; });
}

// A long function that looks now and then whether anybody still waits for it.
void work_for(std::chrono::milliseconds how_long) {
  const auto end = Clock::now() + how_long;
  while (Clock::now() < end && !weft::current_call::cancelled()) std::this_thread::sleep_for(1ms);
}

// One that does not.
void rest_for(std::chrono::milliseconds how_long) { std::this_thread::sleep_for(how_long); }

// --- the report -------------------------------------------------------------------------------

namespace {

constexpr char kOther[] = "worker1";

bool all_as_expected = true;

void show(const char* what, const std::string& result, bool as_expected) {
  std::printf("  %-34s %s%s\n", what, result.c_str(), as_expected ? "" : "   (not as expected)");
  all_as_expected = all_as_expected && as_expected;
}

template <typename Call>
void show_error(const char* what, weft::ErrorCode expected, Call call) {
  try {
    call();
    show(what, "no error", false);
  } catch (const weft::Error& error) {
    const std::string ran = error.may_have_run() ? " (may have run)" : " (did not run)";
    show(what, error.what() + ran, error.code() == expected);
  }
}

void show_calls() {
  std::printf("calls\n");
  const at::Tensor x = at::arange(6).reshape({2, 3});

  const at::Tensor sum = weft::rpc_sync<add>(kOther, x, x);
  show("a function with tensors", "2 * arange(6): sum " + std::to_string(sum.sum().item<int64_t>()),
       at::equal(sum, x + x));

  const at::Tensor turned = weft::rpc_sync<add>(kOther, x.t(), x.t());
  show("a transposed view", "keeps its shape: " + std::to_string(turned.size(0)) + " rows",
       at::equal(turned, (x + x).t()));

  const Sample sample = weft::rpc_sync<scaled>(kOther, Sample{"s", {1, 2}, 7, at::ones({2})}, 3.0);
  show("a struct of strings, vectors, ...", sample.name + ": {3, 6}, label 7",
       sample.values == std::vector<double>{3, 6} && sample.label == 7);

  const auto words =
      weft::rpc_sync<[](std::string text) { return text + ", said worker1"; }>(kOther, "hello");
  show("a lambda", words, words == "hello, said worker1");

  std::vector<weft::Future<int64_t>> futures;
  for (int64_t n = 0; n < 1000; ++n) futures.push_back(weft::rpc_async<square_root>(kOther, n * n));
  const int64_t last = weft::wait_all(futures).back();
  show("1,000 futures", "the last is " + std::to_string(last), last == 999);

  const int64_t chained =
      weft::rpc_async<square_root>(kOther, 400).then([](int64_t root) { return root + 22; }).wait();
  show("a continuation", std::to_string(chained), chained == 42);

  const int64_t bounced = weft::rpc_sync<ping_pong>(kOther, 100);
  show("calls nested 100 deep", std::to_string(bounced) + " times back and forth", bounced == 100);

  const int64_t later = weft::rpc_sync<root_plus_one>(kOther, "worker0", 81);
  show("an asynchronous function", std::to_string(later), later == 10);
}

void show_errors() {
  using weft::ErrorCode;
  std::printf("\nerrors\n");
  show_error("a function that takes too long", ErrorCode::kTimeout, [] {
    weft::rpc_sync<rest_for>({kOther, 50ms}, 500ms);
  });
  show_error("a function that throws", ErrorCode::kRemoteError,
             [] { weft::rpc_sync<square_root>(kOther, -4); });
  show_error("a call that is given up", ErrorCode::kCancelled, [] {
    const weft::Future<void> call = weft::rpc_async<work_for>(kOther, 10s);
    call.cancel();
    call.wait();
  });
  show_error("a worker that does not exist", ErrorCode::kInvalidArgument,
             [] { weft::rpc_sync<nop>("worker7"); });
  const int64_t after = weft::rpc_sync<square_root>(kOther, 49);
  show("the next call", "works: " + std::to_string(after), after == 7);
}

// --- speed ------------------------------------------------------------------------------------

// Times of single calls made for `how_long`, in microseconds, sorted.
template <typename Call>
std::vector<double> time_calls(std::chrono::milliseconds how_long, Call call) {
  for (int i = 0; i < 3; ++i) call();  // connections, caches and pages
  std::vector<double> times;
  const auto end = Clock::now() + how_long;
  auto before = Clock::now();
  while (before < end) {
    call();
    const auto now = Clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(now - before).count());
    before = now;
  }
  std::sort(times.begin(), times.end());
  return times;
}

double percentile(const std::vector<double>& sorted, double p) {
  return sorted[static_cast<size_t>(p * static_cast<double>(sorted.size() - 1))];
}

template <typename Call>
void show_latency(const char* what, Call call) {
  const std::vector<double> times = time_calls(1s, call);
  std::printf("  %-34s p50 %8.1f   p90 %8.1f   p99 %8.1f us   (%zu calls)\n", what,
              percentile(times, 0.5), percentile(times, 0.9), percentile(times, 0.99),
              times.size());
}

// Keeps 1,000 calls under way for a second.
template <typename Start>
void show_rate(const char* what, Start start) {
  std::deque<decltype(start())> under_way;
  size_t done = 0;
  const auto begin = Clock::now();
  auto now = begin;
  while (now - begin < 1s) {
    while (under_way.size() < 1000) under_way.push_back(start());
    for (; under_way.size() > 500; ++done) {
      under_way.front().wait();
      under_way.pop_front();
    }
    now = Clock::now();
  }
  const double seconds = std::chrono::duration<double>(now - begin).count();
  std::printf("  %-34s %.0f calls a second\n", what, static_cast<double>(done) / seconds);
  for (const auto& call : under_way) call.wait();
}

void show_bandwidth() {
  const at::Tensor large = at::ones({int64_t{16} << 20});  // 64 MiB
  const std::vector<double> times =
      time_calls(1s, [&large] { weft::rpc_sync<negate>(kOther, large); });
  const double p50 = percentile(times, 0.5);
  std::printf("  %-34s p50 %8.1f ms   %.2f GiB/s, the negation included\n",
              "neg of 64 MiB, there and back", p50 / 1000, 2 * 0.0625 / (p50 * 1e-6));
}

void show_speed() {
  std::printf("\nspeed over TCP on this machine\n");
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  show_latency("sync, a function that does nothing", [] { weft::rpc_sync<nop>(kOther); });
  show_latency("sync, add of two 4-float tensors", [&] { weft::rpc_sync<add>(kOther, a, b); });
  show_rate("async, a function that does nothing", [] { return weft::rpc_async<nop>(kOther); });
  show_rate("async, add of two 4-float tensors",
            [&] { return weft::rpc_async<add>(kOther, a, b); });
  show_bandwidth();
}

int run_worker(int rank, int) {
  weft::init_rpc("worker" + std::to_string(rank));  // where to meet: from the environment
  if (rank == 0) {
    show_calls();
    show_errors();
    show_speed();
    std::ostringstream counters;
    counters << weft::debug_info();
    std::printf("\ncounters (weft::debug_info) of %s", counters.str().c_str());
  }
  weft::shutdown();  // serves until nobody needs this worker any more
  return all_as_expected ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return weft::launch(argc, argv, 2, run_worker); }

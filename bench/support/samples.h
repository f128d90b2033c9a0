// How things are timed: the median of single calls, rates of many, and rounds that take turns.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values);

inline double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Median time of one call, each timed by itself.
template <typename Call>
double median_microseconds(size_t count, Call&& call) {
  std::vector<double> times;
  times.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto start = Clock::now();
    call(i);
    times.push_back(microseconds_since(start));
  }
  return median(std::move(times));
}

/// Calls per second of `threads` threads that together make `count` calls, without thread start.
template <typename Call>
double calls_per_second(size_t threads, size_t count, Call&& call) {
  std::barrier line(static_cast<ptrdiff_t>(threads + 1));
  std::vector<std::jthread> callers;
  const size_t each = count / threads + 1;
  for (size_t thread = 0; thread < threads; ++thread) {
    callers.emplace_back([&, thread] {
      line.arrive_and_wait();
      for (size_t i = 0; i < each; ++i) call(thread);
      line.arrive_and_wait();
    });
  }
  line.arrive_and_wait();
  const auto start = Clock::now();
  line.arrive_and_wait();
  return 1e6 * static_cast<double>(each * threads) / microseconds_since(start);
}

/// Calls per second of one caller that keeps `outstanding` futures in a ring: it waits for the
/// oldest and issues the next.
template <typename Issue>
double pipelined_rate(size_t count, size_t outstanding, Issue&& issue) {
  const size_t window = std::min(count, outstanding);
  std::vector<decltype(issue())> ring;
  ring.reserve(window);
  const auto start = Clock::now();
  for (size_t i = 0; i < window; ++i) ring.push_back(issue());
  for (size_t i = window; i < count; ++i) {
    auto& oldest = ring[i % window];
    oldest.wait();
    oldest = issue();
  }
  for (size_t i = count; i < count + window; ++i) ring[i % window].wait();
  return 1e6 * static_cast<double>(count) / microseconds_since(start);
}

using Measurement = std::function<double()>;

/// Takes the measurements in turn, `rounds` times after one round that is thrown away, so that
/// whatever else the machine does meets all of them alike. One series per measurement; an empty
/// function gives an empty series.
std::vector<std::vector<double>> take_turns(size_t rounds,
                                            const std::vector<Measurement>& measurements);

}  // namespace bench

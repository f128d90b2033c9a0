// What the behaviours of distributed autograd are shown with: a group of workers, functions to
// call.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/loopback_group.h"
#include "support/sanitizers.h"
#include "weft/autograd.h"

namespace weft::behaviour_autograd {

using namespace std::chrono_literals;
using autograd::BackwardOptions;
using autograd::census;
using autograd::Context;
using autograd::Mode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;
using Clock = std::chrono::steady_clock;

inline auto fails_with(ErrorCode code) { return Throws<Error>(Property(&Error::code, code)); }
inline auto fails_with(ErrorCode code, const std::string& text) {
  return Throws<Error>(
      AllOf(Property(&Error::code, code), Property(&Error::message, HasSubstr(text))));
}

inline bool eventually(const std::function<bool()>& condition) {
  for (const auto limit = Clock::now() + 10s; Clock::now() < limit;) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

inline at::Tensor leaf(at::IntArrayRef sizes, double first = 1) {
  const at::Tensor values = at::arange(1, 1 + c10::multiply_integers(sizes), at::kDouble);
  return (values.reshape(sizes) * first).set_requires_grad(true);
}
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && at::allclose(a, b);
}

// Functions to call.
inline at::Tensor product(at::Tensor a, at::Tensor b) { return a * b; }
inline at::Tensor first_of(std::vector<at::Tensor> some) { return some.at(0) * 2; }
inline at::Tensor identity(at::Tensor x) { return x; }
inline at::Tensor call_on(at::Tensor x, at::Tensor y, std::vector<int> path) {
  if (path.empty()) return x * y;
  const int next = path.front();
  path.erase(path.begin());
  return current_agent().sync<call_on>(next, x + 1, y, path) * 2;
}
inline at::Tensor call_on_locally(const at::Tensor& x, const at::Tensor& y, int depth) {
  return depth == 0 ? x * y : call_on_locally(x + 1, y, depth - 1) * 2;
}
inline bool in_a_context() { return autograd::current_context_id().has_value(); }
inline int64_t context_id() { return autograd::current_context_id().value_or(-1); }
inline at::Tensor broken_backward(at::Tensor x) {
  at::Tensor y = x * 2;
  y.register_hook([](const at::Tensor&) { throw std::out_of_range("no gradient today"); });
  return y;
}
inline at::Tensor breaks_at_the_end(at::Tensor x, std::vector<int> path) {
  if (path.empty()) return broken_backward(x);
  const int next = path.front();
  path.erase(path.begin());
  return current_agent().sync<breaks_at_the_end>(next, x * 2, path);
}
inline at::Tensor throws(at::Tensor) { throw std::runtime_error("no result today"); }
inline at::Tensor dropped_out(at::Tensor x) { return at::dropout(x, 0.5, /*train=*/true); }

class Behaviour : public testing::Test {
 protected:
  test::LoopbackGroup group{{"a", "b", "c", "d"}};
  Agent& a = group[0];
  Agent& b = group[1];
  Agent& c = group[2];

  bool all_forgotten() {
    return eventually([this] {
      for (size_t i = 0; i < group.size(); ++i) {
        if (census(group[i]).contexts > 0) return false;
      }
      return true;
    });
  }
};

}  // namespace weft::behaviour_autograd

// Agents of one process, with a thread for each.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "collective/process_group_state.h"
#include "support/loopback_group.h"
#include "weft/process_group.h"

namespace weft::test {

inline void expect_full(const at::Tensor& tensor, double value) {
  EXPECT_TRUE(tensor.numel() == 0 || tensor.eq(value).all().item<bool>())
      << tensor.sizes() << " of " << tensor.scalar_type() << " in place of " << value;
}

/// The error that `f` throws; a success in place of one is a failure of the test.
template <typename F>
Error error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorCode::kBrokenPromise, "no error");
}

/// Does nothing until the group has failed because others gave up.
inline void eventually_ended(const ProcessGroup& group, ErrorCode code) {
  const auto bound = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto& channel = group.group()->channel();
  while (!channel.failure() && std::chrono::steady_clock::now() < bound) std::this_thread::yield();
  ASSERT_TRUE(channel.failure());
  EXPECT_EQ(channel.failure()->code(), code);
}

class ProcessGroupScene : public testing::Test {
 protected:
  explicit ProcessGroupScene(const std::vector<std::string>& names, const Options& options = {})
      : agents(names, options) {}

  /// Each in its own thread.
  void on_all(const std::function<void(Agent&, size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < agents.size(); ++i) {
      threads.emplace_back([&, i] { EXPECT_NO_THROW(body(agents[i], i)); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  /// The same with a group of all.
  void in_group(const std::function<void(const ProcessGroup&, int)>& body,
                const GroupOptions& options = {}) {
    on_all([&](Agent& agent, size_t rank) {
      body(new_group(agent, {}, options), static_cast<int>(rank));
    });
  }
  LoopbackGroup agents;
};

}  // namespace weft::test

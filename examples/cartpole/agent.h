// The learner: chooses actions for all observers and trains its policy after every episode.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <weft/rref.h>

#include "cart_pole.h"

class Observer;

struct AgentOptions {
  double gamma = 0.99;
  uint64_t seed = 1;
  bool batch = false;
};

class Agent : public std::enable_shared_from_this<Agent> {
 public:
  Agent(const AgentOptions& options, int observers);
  ~Agent();

  // For observers, any number at a time.

  /// In batch mode the answer comes when every observer of this episode has asked: one forward pass
  /// serves them all, and no thread waits for it.
  weft::Future<int64_t> select_action(int observer, CartPole::State state);
  void report_reward(int observer, double reward);

  // For the program.

  /// One episode on every observer, then a training step; returns the smallest observer's reward.
  double run_episode(const std::vector<weft::RRef<Observer>>& observers,
                     const weft::RRef<std::shared_ptr<Agent>>& self);
  double running_reward() const { return running_reward_; }
  uint64_t steps() const { return steps_; }

 private:
  struct Learning;  // what needs libtorch's modules and optimizers
  struct Question {
    int observer;
    CartPole::State state;
    weft::Promise<int64_t> answer;
  };

  double finish_episode();
  void on_observer_done();
  void answer_if_all_asked(std::unique_lock<std::mutex>& lock);
  std::vector<int64_t> choose(const std::vector<int>& observers,
                              const std::vector<CartPole::State>& states);

  const AgentOptions options_;
  std::unique_ptr<Learning> learning_;
  std::mutex mutex_;
  std::vector<Question> questions_;  // batch mode: not answered yet
  size_t playing_ = 0;               // observers whose episode goes on
  std::atomic<uint64_t> steps_{0};
  double running_reward_ = 0;
};

/// How observers reach the agent: free functions of what the reference refers to.
using AgentRef = weft::RRef<std::shared_ptr<Agent>>;
weft::Future<int64_t> select_action(std::shared_ptr<Agent>& agent, int observer,
                                    CartPole::State state);
void report_reward(std::shared_ptr<Agent>& agent, int observer, double reward);

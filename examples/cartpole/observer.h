// Plays episodes in an environment of its own, asking the agent what to do.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <weft/rref.h>

#include "agent.h"
#include "cart_pole.h"

class Observer {
 public:
  explicit Observer(uint64_t seed) : id_(weft::get_worker_info().id), environment_(seed) {}

  /// Two calls a step, as in the tutorial: one for the action, one to report the reward.
  void run_episode(AgentRef agent) {
    CartPole::State state = environment_.reset();
    for (bool done = false; !done;) {
      const int64_t action = agent.rpc_sync<select_action>(id_, state);
      const CartPole::Outcome outcome = environment_.step(action);
      agent.rpc_sync<report_reward>(id_, outcome.reward);
      state = outcome.state;
      done = outcome.done;
    }
  }

 private:
  const int id_;
  CartPole environment_;
};

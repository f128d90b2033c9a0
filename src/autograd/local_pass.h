// One worker's part in the backward passes of one context, as a plain state machine: told of
// messages, it says what to send. No threads, no clock.
//
// A pass begins with being asked which messages will get gradients (any number of times, or not at
// all), goes on with the order to run, and is finished when every node that was reached has run.
// Gradients may come before the order; late and repeated ones are dropped.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "autograd/leaves.h"
#include "autograd/pass_message.h"
#include "autograd/sweep.h"
#include "autograd/tape.h"

namespace weft::autograd {

class LocalPass {
 public:
  LocalPass(int64_t context, const Tape& tape) : context_(context), tape_(tape) {}

  /// Given that these messages (sent from here), or these roots, get gradients: the received
  /// messages that get gradients in turn. Throw kInvalidArgument for messages or roots that do not
  /// fit the pass or are unknown here.
  Reached reached_by(uint64_t pass, const std::vector<uint64_t>& messages);
  Reached reached_by_roots(uint64_t pass, const std::vector<at::Tensor>& roots);

  void run(const RunOrder& order);

  /// The worker of rank `from` returned gradients. Throws if it was not sent that message.
  void on_gradients(int from, ReturnedGradients returned);

  struct Outgoing {
    int to;
    ReturnedGradients returned;
  };
  bool can_step() const { return running_ && sweep_->can_step(); }
  bool next_is_quick() const { return sweep_->next_is_quick(); }
  /// Runs one node; returns what must be sent. Gradient mode must be off. Throws what the node
  /// throws: then the context must be given up.
  std::optional<Outgoing> step();

  /// The leaf that the last step gave a gradient, and that gradient; once.
  std::optional<std::pair<at::Tensor, at::Tensor>> take_leaf() {
    return std::exchange(last_leaf_, std::nullopt);
  }

  /// Waits for what an accelerator still does for the steps so far.
  void finish_device_work() {
    if (sweep_) sweep_->finish_device_work();
  }

  /// Once for each pass that ran, after its last step: the gradients it gave.
  std::optional<Leaves> take_finished();

  uint64_t pass() const { return pass_; }
  bool running() const { return running_; }
  uint64_t dropped() const { return dropped_; }
  /// For people: the messages whose gradients are still to come.
  std::vector<uint64_t> awaited() const { return {awaited_.begin(), awaited_.end()}; }

 private:
  void enter(uint64_t pass);
  Reached reach(const Edges& edges);
  void keep_early(int from, ReturnedGradients returned);

  const int64_t context_;
  const Tape& tape_;
  uint64_t pass_ = 0;
  bool running_ = false;
  bool over_ = true;  // the pass has run
  bool retain_graph_ = false;
  std::optional<Sweep> sweep_;
  std::vector<at::Tensor> roots_;
  std::set<uint64_t> awaited_;
  // Gradients of a pass that has not been ordered yet, by message.
  uint64_t early_pass_ = 0;
  std::map<uint64_t, std::pair<int, ReturnedGradients>> early_;
  Leaves fresh_;  // of this pass
  std::optional<std::pair<at::Tensor, at::Tensor>> last_leaf_;
  uint64_t dropped_ = 0;
};

}  // namespace weft::autograd

// Decides what one worker sends when in a pass, and when its part is finished. No threads, no
// messages.
//
// A worker keeps gradients for the leader back and sends them in its report, its answer to the run
// order, unless slow work comes before it. A worker reports only when every gradient it sent has
// been acknowledged: else it could die after its report with gradients unsent, and nobody would
// notice.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/local_pass.h"

namespace weft::autograd {

class Dispatch {
 public:
  using Outgoing = LocalPass::Outgoing;
  // A message takes 4,096 rows of tensors; a sparse one has three.
  static constexpr size_t kMostHeldTensors = 1000;

  /// `reports_to`: the rank of the leader, if gradients for it may go with the report.
  void begin(uint64_t pass, std::optional<int> reports_to) {
    pass_ = pass;
    reports_to_ = reports_to;
    held_.clear();
    held_tensors_ = 0;
    undelivered_.clear();
    ran_ = false;
    over_ = false;
  }

  /// Returns the gradients to be sent now: these, none, or all that are kept back.
  std::vector<Outgoing> send(Outgoing outgoing) {
    std::vector<Outgoing> now;
    if (outgoing.to == reports_to_) {
      held_tensors_ += outgoing.returned.gradients.size();
      held_.push_back(std::move(outgoing.returned));
      if (held_tensors_ > kMostHeldTensors) now = send_held();
    } else {
      ++undelivered_[outgoing.to];
      now.push_back(std::move(outgoing));
    }
    return now;
  }
  /// Returns the gradients kept back for the leader, to be sent now: this worker still has slow
  /// work or waits for others, and the leader should not wait for that.
  std::vector<Outgoing> send_held() {
    std::vector<Outgoing> now;
    if (held_.empty()) return now;
    now.reserve(held_.size());
    undelivered_[*reports_to_] += held_.size();
    for (ReturnedGradients& each : held_) now.push_back({*reports_to_, std::move(each)});
    held_.clear();
    held_tensors_ = 0;
    return now;
  }

  void on_delivered(int to, uint64_t pass) {
    auto found = undelivered_.find(to);
    if (pass != pass_ || found == undelivered_.end()) return;
    if (--found->second == 0) undelivered_.erase(found);
  }
  /// That worker has finished its part, so all that was sent to it has arrived.
  void on_finished(int rank) { undelivered_.erase(rank); }
  void on_ran() { ran_ = true; }
  /// Gradients that were sent to that worker may be lost. True if this worker waits to hear of
  /// them: then it does not report. Otherwise that worker has them, as its report said, and only
  /// the acknowledgement was lost.
  bool on_lost(int to, uint64_t pass) {
    if (over_ || pass != pass_ || !undelivered_.contains(to)) return false;
    over_ = true;
    return true;
  }

  /// Once, when nothing is left to do: the gradients that go with the report. Takes no memory: who
  /// acknowledges the last gradients could not be told of a lack of it, and the pass would wait.
  std::optional<std::vector<ReturnedGradients>> take_report() noexcept {
    if (over_ || !ran_ || !undelivered_.empty()) return std::nullopt;
    over_ = true;
    return std::exchange(held_, {});
  }

 private:
  uint64_t pass_ = 0;
  std::optional<int> reports_to_;
  std::vector<ReturnedGradients> held_;
  size_t held_tensors_ = 0;
  std::map<int, size_t> undelivered_;  // by rank
  bool ran_ = false;
  bool over_ = true;
};

}  // namespace weft::autograd

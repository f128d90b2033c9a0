// The decisions of the leader of a backward pass, as a plain state machine: answers go in, and out
// come the workers to ask and to order. No threads, no clock.
//
// First the leader asks every worker that sent something the roots depend on which messages that
// depends on in turn, and so on. When no answer is missing, the leader orders every worker that was
// reached to run. When all have finished, the pass has.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <set>
#include <utility>
#include <vector>

#include "autograd/pass_message.h"

namespace weft::autograd {

class PassProgress {
 public:
  /// The workers with roots run in any case.
  explicit PassProgress(std::set<int> with_roots) : runners_(std::move(with_roots)) {}

  struct Orders {
    Reached ask;  // by rank: the messages it is asked about
    std::vector<int> run;
  };
  /// `answers`: the messages that the roots lead to, one answer for each worker that has roots.
  /// Then on_answer() is to be called for each question of the orders.
  Orders begin(const std::vector<Reached>& answers);
  Orders on_answer(const Reached& answer);
  /// Without asking: all `runners` run everything.
  Orders begin_with(const std::set<int>& runners);

  void on_finished(int rank) { unfinished_.erase(rank); }
  bool finished() const { return ordered_ && unfinished_.empty(); }
  const std::set<int>& runners() const { return runners_; }
  const std::set<int>& unfinished() const { return unfinished_; }

 private:
  void take(const Reached& answer, Orders& orders);
  void order_if_all_answered(Orders& orders);

  std::set<int> runners_;
  std::set<std::pair<int, uint64_t>> asked_;
  size_t unanswered_ = 0;
  bool ordered_ = false;
  std::set<int> unfinished_;
};

}  // namespace weft::autograd

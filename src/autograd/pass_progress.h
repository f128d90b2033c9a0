// How the worker that began a backward pass leads it, as a plain state machine: told of answers, it
// says whom to ask and to order. No threads, no clock.
//
// First everybody who sent something the roots depend on is asked, on and on, for whatever that
// depends on in turn; when no answer is missing, every worker that was reached is ordered to run;
// when all have finished, the pass has.
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
  /// What the roots led to, one answer for each worker that has some; then `on_answer` for each
  /// question of the orders.
  Orders begin(const std::vector<Reached>& answers);
  Orders on_answer(const Reached& answer);
  /// Without asking: all of them run everything.
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

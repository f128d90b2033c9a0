// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/pass_progress.h"

namespace weft::autograd {

void PassProgress::take(const Reached& answer, Orders& orders) {
  for (const auto& [rank, messages] : answer) {
    for (const uint64_t message : messages) {
      if (asked_.emplace(rank, message).second) orders.ask[rank].push_back(message);
    }
  }
}

void PassProgress::order_if_all_answered(Orders& orders) {
  for (const auto& [rank, messages] : orders.ask) runners_.insert(rank);
  unanswered_ += orders.ask.size();
  if (unanswered_ != 0) return;
  orders.run.assign(runners_.begin(), runners_.end());
  unfinished_ = runners_;
  ordered_ = true;
}

PassProgress::Orders PassProgress::begin(const std::vector<Reached>& answers) {
  Orders orders;
  for (const Reached& answer : answers) take(answer, orders);
  order_if_all_answered(orders);
  return orders;
}

PassProgress::Orders PassProgress::on_answer(const Reached& answer) {
  Orders orders;
  --unanswered_;
  take(answer, orders);
  order_if_all_answered(orders);
  return orders;
}

PassProgress::Orders PassProgress::begin_with(const std::set<int>& runners) {
  Orders orders;
  runners_.insert(runners.begin(), runners.end());
  order_if_all_answered(orders);
  return orders;
}

}  // namespace weft::autograd

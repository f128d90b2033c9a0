// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/pass_orders.h"

#include "weft/error.h"

namespace weft::autograd {

namespace {

// How long the creator's own pass may run before those that wait only for their orders get them.
constexpr auto kOrdersWait = std::chrono::microseconds(200);

}  // namespace

void PassOrders::begin(RunOrder order, std::set<int> ranks, base::Time deadline) {
  const base::MutexLock lock(mutex_);
  order_ = std::move(order);
  waiting_ = std::move(ranks);
  sent_.clear();
  began_ = clock_->now();
  deadline_ = deadline;
}

void PassOrders::send(int rank, const RunOrder& order) {
  Future<RunReport> answer = send_(rank, order);
  const base::MutexLock lock(mutex_);
  sent_.emplace_back(rank, std::move(answer));
}

bool PassOrders::send_with(int rank, ReturnedGradients& gradients) {
  const base::MutexLock one_at_a_time(sending_);
  RunOrder order;
  {
    const base::MutexLock lock(mutex_);
    if (waiting_.erase(rank) == 0) return false;
    order = order_;
  }
  order.gradients.push_back(std::move(gradients));
  send(rank, order);
  return true;
}

void PassOrders::look_at_time() {
  const base::Time now = clock_->now();
  bool is_late = false;
  {
    const base::MutexLock lock(mutex_);
    if (now >= deadline_) throw Error(ErrorCode::kTimeout, "the pass took longer than its timeout");
    is_late = !waiting_.empty() && now - began_ > kOrdersWait;
  }
  if (is_late) send_rest();
}

PassOrders::Sent PassOrders::send_rest() {
  const base::MutexLock one_at_a_time(sending_);
  std::set<int> rest;
  RunOrder order;
  {
    const base::MutexLock lock(mutex_);
    rest.swap(waiting_);
    order = order_;
  }
  for (const int rank : rest) send(rank, order);
  const base::MutexLock lock(mutex_);
  return sent_;
}

void PassOrders::clear() {
  Sent dropped;
  const base::MutexLock lock(mutex_);
  waiting_.clear();
  dropped.swap(sent_);
}

}  // namespace weft::autograd

// The orders to run that the creator of a context has to send in a pass.
//
// The creator's own pass runs first, and the gradients it has for a worker go with that worker's
// order. Orders that no gradients went with are sent when the creator has nothing left to run, or
// when it takes long.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "autograd/pass_message.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "weft/future.h"

namespace weft::autograd {

/// Thread-safe.
class PassOrders {
 public:
  using Send = std::function<Future<RunReport>(int rank, const RunOrder& order)>;
  using Sent = std::vector<std::pair<int, Future<RunReport>>>;

  PassOrders(std::shared_ptr<base::Clock> clock, Send send)
      : clock_(std::move(clock)), send_(std::move(send)) {}

  /// A pass begins: each of `ranks` gets `order`.
  void begin(RunOrder order, std::set<int> ranks, base::Time deadline);
  /// Sends the order of `rank` with these gradients. False: that worker has its order already.
  bool send_with(int rank, ReturnedGradients& gradients);
  /// To be called while the creator's own pass runs: if that takes long, workers that only wait for
  /// their orders get them. Throws kTimeout at the deadline.
  void look_at_time();
  /// Sends the orders that are left; returns the answers to all orders of the pass.
  Sent send_rest();
  /// Drops the orders that are left.
  void clear();

 private:
  void send(int rank, const RunOrder& order) WEFT_REQUIRES(sending_);

  const std::shared_ptr<base::Clock> clock_;
  const Send send_;
  base::Mutex sending_;  // held while an order is sent

  base::Mutex mutex_;
  RunOrder order_ WEFT_GUARDED_BY(mutex_);
  std::set<int> waiting_ WEFT_GUARDED_BY(mutex_);  // have not got it
  Sent sent_ WEFT_GUARDED_BY(mutex_);
  base::Time began_ WEFT_GUARDED_BY(mutex_){};
  base::Time deadline_ WEFT_GUARDED_BY(mutex_) = base::Time::max();
};

}  // namespace weft::autograd

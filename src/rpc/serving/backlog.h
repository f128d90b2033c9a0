// Calls that wait for a thread, fair between callers. A deterministic core: no thread, no clock.
//
// Each caller has a queue. The callers take turns: a caller with a thousand calls delays another
// caller's call by one call, not by a thousand.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <utility>

namespace weft::rpc {

/// `Caller` is ordered; `Call` is movable.
template <typename Caller, typename Call>
class Backlog {
 public:
  void push(const Caller& caller, Call call) {
    std::deque<Call>& queue = queues_[caller];
    queue.push_back(std::move(call));
    try {
      if (queue.size() == 1) turns_.push_back(caller);
    } catch (...) {  // no memory: as if it had not been pushed
      queue.pop_back();
      throw;
    }
    ++size_;
  }

  /// The oldest call of the caller whose turn it is.
  std::optional<Call> pop() {
    return pop_if([](const Call&) { return true; });
  }

  /// Of the callers' oldest calls, the first in order of their turns for which `suits` holds.
  template <typename F>
  std::optional<Call> pop_if(const F& suits) {
    const auto turn = std::find_if(turns_.begin(), turns_.end(), [&](const Caller& caller) {
      return suits(queues_[caller].front());
    });
    if (turn == turns_.end()) return std::nullopt;
    std::deque<Call>& queue = queues_[*turn];
    Call call = std::move(queue.front());
    queue.pop_front();
    // Without memory: the thread that takes a call could tell nobody that there is none.
    if (queue.empty()) {
      turns_.erase(turn);
    } else {
      turns_.splice(turns_.end(), turns_, turn);
    }
    --size_;
    return call;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::map<Caller, std::deque<Call>> queues_;  // of all callers that ever had to wait
  std::list<Caller> turns_;                    // each caller whose queue is not empty, once
  size_t size_ = 0;
};

}  // namespace weft::rpc

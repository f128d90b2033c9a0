// Calls that wait for a thread, fair between callers. A deterministic core: no thread, no clock.
//
// Each caller has a queue. The callers take turns: a caller with a thousand calls delays another
// caller's call by one call, not by a thousand. A caller that is held back has no turns.
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
    Queue& queue = queues_[caller];
    queue.calls.push_back(std::move(call));
    try {
      if (queue.calls.size() == 1) turns_of(queue).push_back(caller);
    } catch (...) {  // no memory: as if it had not been pushed
      queue.calls.pop_back();
      throw;
    }
    if (!queue.held) ++size_;
  }

  /// The oldest call of the caller whose turn it is.
  std::optional<Call> pop() {
    return pop_if([](const Call&) { return true; });
  }

  /// Of the callers' oldest calls, the first in order of their turns for which `suits` holds.
  template <typename F>
  std::optional<Call> pop_if(const F& suits) {
    const auto turn = std::find_if(turns_.begin(), turns_.end(), [&](const Caller& caller) {
      return suits(queues_[caller].calls.front());
    });
    if (turn == turns_.end()) return std::nullopt;
    std::deque<Call>& calls = queues_[*turn].calls;
    Call call = std::move(calls.front());
    calls.pop_front();
    // Without memory: the thread that takes a call could tell nobody that there is none.
    if (calls.empty()) {
      turns_.erase(turn);
    } else {
      turns_.splice(turns_.end(), turns_, turn);
    }
    --size_;
    return call;
  }

  /// While a caller is held back, none of its calls is given out or counted. To end that needs no
  /// memory.
  void hold(const Caller& caller, bool held) {
    const auto found = held ? queues_.try_emplace(caller).first : queues_.find(caller);
    if (found == queues_.end() || found->second.held == held) return;
    Queue& queue = found->second;
    std::list<Caller>& from = turns_of(queue);
    queue.held = held;
    size_ = held ? size_ - queue.calls.size() : size_ + queue.calls.size();
    if (queue.calls.empty()) return;
    std::list<Caller>& to = turns_of(queue);
    to.splice(to.end(), from, std::find(from.begin(), from.end(), caller));
  }

  /// Calls that can be given out.
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  struct Queue {
    std::deque<Call> calls;
    bool held = false;
  };
  std::list<Caller>& turns_of(const Queue& queue) { return queue.held ? held_ : turns_; }

  std::map<Caller, Queue> queues_;  // of all callers that ever had to wait
  // Each caller whose queue is not empty stands in one of these, once.
  std::list<Caller> turns_;
  std::list<Caller> held_;
  size_t size_ = 0;
};

}  // namespace weft::rpc

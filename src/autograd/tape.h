// The messages that one worker sent in one context: for each, where the gradients of its tensors
// go.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/torch_graph.h"
#include "base/mutex.h"

namespace weft::autograd {

/// Thread-safe.
class Tape {
 public:
  struct Sent {
    int to;
    Edges edges;
  };

  /// Records a message and returns its number, from 1; zero, which means none, after take().
  uint64_t record(int to, Edges edges) {
    const base::MutexLock lock(mutex_);
    if (taken_) return 0;
    sent_.emplace(++last_, std::make_shared<const Sent>(Sent{to, std::move(edges)}));
    return last_;
  }
  /// Null if there is no such message.
  std::shared_ptr<const Sent> find(uint64_t message) const {
    const base::MutexLock lock(mutex_);
    auto found = sent_.find(message);
    return found == sent_.end() ? nullptr : found->second;
  }
  std::vector<uint64_t> messages() const {
    const base::MutexLock lock(mutex_);
    std::vector<uint64_t> all;
    for (const auto& [message, sent] : sent_) all.push_back(message);
    return all;
  }
  size_t size() const {
    const base::MutexLock lock(mutex_);
    return sent_.size();
  }
  /// Gives all recorded messages away; from now on none is recorded.
  std::map<uint64_t, std::shared_ptr<const Sent>> take() {
    const base::MutexLock lock(mutex_);
    taken_ = true;
    return std::exchange(sent_, {});
  }

 private:
  mutable base::Mutex mutex_;
  uint64_t last_ WEFT_GUARDED_BY(mutex_) = 0;
  bool taken_ WEFT_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<const Sent>> sent_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::autograd

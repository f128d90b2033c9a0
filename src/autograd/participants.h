// The workers that calls in one context reached from here, at once or through others. Thread-safe.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "autograd/note.h"
#include "base/mutex.h"

namespace weft::autograd {

class Participants {
 public:
  /// `members`: how many the group has.
  explicit Participants(size_t members) : members_(static_cast<int>(members)) {}

  void add(int rank) {
    const base::MutexLock lock(mutex_);
    ranks_.insert(rank);
  }
  /// Adds the workers that a reply names; ranks that no member has are left out.
  void add_from(const ReplyNote& reply) {
    const base::MutexLock lock(mutex_);
    for (const uint16_t rank : reply.participants) {
      if (rank < members_) ranks_.insert(rank);
    }
    more_ = more_ || reply.more;
  }
  /// Puts as many workers into the note as it takes.
  void tell(ReplyNote& reply) const {
    const base::MutexLock lock(mutex_);
    for (const int rank : ranks_) {
      if (reply.participants.size() == kMostParticipants) break;
      reply.participants.push_back(static_cast<uint16_t>(rank));
    }
    reply.more = more_ || ranks_.size() > kMostParticipants;
  }

  std::set<int> all() const {
    const base::MutexLock lock(mutex_);
    return ranks_;
  }
  bool contains(int rank) const {
    const base::MutexLock lock(mutex_);
    return ranks_.contains(rank);
  }
  /// Whether there may be others.
  bool has_more() const {
    const base::MutexLock lock(mutex_);
    return more_;
  }

  /// For the creator: the workers that have sparse gradients, by the reports of the last pass.
  void on_report(int rank, bool has_sparse) {
    const base::MutexLock lock(mutex_);
    if (has_sparse) {
      with_sparse_.insert(rank);
    } else {
      with_sparse_.erase(rank);
    }
  }
  std::set<int> with_sparse() const {
    const base::MutexLock lock(mutex_);
    return with_sparse_;
  }

 private:
  const int members_;
  mutable base::Mutex mutex_;
  std::set<int> ranks_ WEFT_GUARDED_BY(mutex_);
  bool more_ WEFT_GUARDED_BY(mutex_) = false;
  std::set<int> with_sparse_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::autograd

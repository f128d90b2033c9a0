// Handles that this worker holds for the receivers of its replies, until they have accepted the
// references or a lease has passed. A deterministic core.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "rref/session_message.h"
#include "weft/detail/ref_counted.h"

namespace weft::rref {

class ReplyHolds {
 public:
  using Handle = detail::Ref<detail::RefCounted>;

  void add(Worker receiver, const RRefId& id, Handle handle, base::Time until) {
    holds_[{receiver, id}].push_back({std::move(handle), until});
    next_ = std::min(next_, until);
  }

  /// The receiver has accepted the reference. The caller frees the handles in `let_go`.
  void end_one(Worker receiver, const RRefId& id, std::vector<Handle>& let_go) {
    auto found = holds_.find({receiver, id});
    if (found == holds_.end()) return;
    let_go.push_back(std::move(found->second.back().handle));
    found->second.pop_back();
    if (found->second.empty()) holds_.erase(found);
  }

  void expire(base::Time now, std::vector<Handle>& let_go) {
    if (now < next_) return;
    next_ = base::Time::max();
    for (auto at = holds_.begin(); at != holds_.end();) {
      std::erase_if(at->second, [&](Hold& hold) {
        next_ = hold.until > now ? std::min(next_, hold.until) : next_;
        if (hold.until > now) return false;
        let_go.push_back(std::move(hold.handle));
        return true;
      });
      at = at->second.empty() ? holds_.erase(at) : std::next(at);
    }
  }
  /// A lower bound: no hold expires before this time. It may be too early, because a hold that was
  /// ended does not move it.
  base::Time next() const { return next_; }

  void end_all(std::vector<Handle>& let_go) {
    for (auto& [key, holds] : holds_) {
      for (Hold& hold : holds) let_go.push_back(std::move(hold.handle));
    }
    holds_.clear();
  }

 private:
  struct Hold {
    Handle handle;
    base::Time until;
  };
  std::map<std::pair<Worker, RRefId>, std::vector<Hold>> holds_;
  base::Time next_ = base::Time::max();
};

}  // namespace weft::rref

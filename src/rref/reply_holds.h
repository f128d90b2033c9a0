// Handles that this worker holds for the receivers of its replies, until they have accepted the
// references or a lease has passed. A deterministic core.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/room.h"
#include "rref/session_message.h"
#include "weft/detail/ref_counted.h"

namespace weft::rref {

class ReplyHolds {
 public:
  using Handle = detail::Ref<detail::RefCounted>;

  void add(Worker receiver, const RRefId& id, Handle handle, base::Time until) {
    auto found = holds_.try_emplace({receiver, id}).first;
    try {
      found->second.push_back({std::move(handle), until});
    } catch (...) {
      if (found->second.empty()) holds_.erase(found);
      throw;
    }
    next_ = std::min(next_, until);
  }

  /// The receiver has accepted the reference: of several holds the earliest ends, the one that
  /// would expire first. The caller frees the handles in `let_go`. Without memory nothing changes.
  void end_one(Worker receiver, const RRefId& id, std::vector<Handle>& let_go) {
    auto found = holds_.find({receiver, id});
    if (found == holds_.end()) return;
    base::make_room(let_go, let_go.size() + 1);
    auto earliest =
        std::min_element(found->second.begin(), found->second.end(),
                         [](const Hold& a, const Hold& b) { return a.until < b.until; });
    let_go.push_back(std::move(earliest->handle));
    found->second.erase(earliest);
    if (found->second.empty()) holds_.erase(found);
  }

  /// Without memory nothing changes.
  void expire(base::Time now, std::vector<Handle>& let_go) {
    if (now < next_) return;
    size_t expired = 0;
    for (const auto& [key, holds] : holds_) {
      expired += static_cast<size_t>(std::count_if(
          holds.begin(), holds.end(), [now](const Hold& hold) { return hold.until <= now; }));
    }
    base::make_room(let_go, let_go.size() + expired);
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
    size_t count = 0;
    for (const auto& [key, holds] : holds_) count += holds.size();
    base::make_room(let_go, let_go.size() + count);
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

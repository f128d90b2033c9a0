// barrier and all_gather: members of a set meet at the first of them by name and exchange a value
// each. The shell around MeetingTable (on the member that leads) and MeetingRounds (on each).
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "rpc/group/meeting_rounds.h"
#include "rpc/group/meeting_table.h"
#include "rpc/io/alarm.h"
#include "weft/destination.h"
#include "weft/future.h"

namespace weft::rpc {

class AgentCore;

/// The value that a member brings, encoded.
struct Contribution {
  std::vector<uint8_t> bytes;
  std::vector<at::Tensor> tensors;
};

class Meetings {
 public:
  using Set = std::vector<std::string>;  // of names
  using Contributions = std::map<std::string, Contribution>;
  using Outcome = MeetingOutcome<Contribution>;

  explicit Meetings(AgentCore& agent);

  /// Meets the members of `set` (empty: all) and returns the contribution of each. Throws kTimeout
  /// naming the members that did not come, kPeerLost naming one that is gone; the meeting may then
  /// be tried again.
  Contributions meet(const Contribution& mine, Set set, Timeout timeout);

  // On the member that leads.
  Future<Outcome> on_arrival(Set set, uint64_t round, const std::string& who,
                             Contribution contribution);
  std::vector<std::string> on_withdrawal(const Set& set, uint64_t round, const std::string& who);

  /// A member is gone: meetings that wait for it end.
  void on_lost(const std::string& who, const std::string& why);
  /// Gives up all meetings that this member leads. Waiting members learn it from their connections.
  void stop();
  size_t open_meetings() const;

 private:
  void check(const Set& set, const std::string& who) const;
  Set complete(Set set) const;
  Outcome meet_in_round(const Contribution& mine, const Set& set, uint64_t round, Timeout timeout);
  std::string name_missing(const Set& set, uint64_t round, int leader);
  void sweep();
  template <typename F>
  void with_table(const F& change);

  AgentCore& agent_;
  mutable base::Mutex mutex_;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  MeetingTable<Contribution> table_ WEFT_GUARDED_BY(mutex_);
  MeetingRounds rounds_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> answers_
      WEFT_GUARDED_BY(mutex_);  // to be given once the lock is released
  std::shared_ptr<Alarm> alarm_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc

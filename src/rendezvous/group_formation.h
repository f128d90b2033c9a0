// The protocol by which a group forms at a store: every member leaves a record, reads the records
// of the others, and confirms that it has read them.
//
// A record alone proves nothing, for a member that was killed may have left it, in this run or in
// an earlier one. A confirmation names the incarnations of all the members that its writer has read
// of. When all members have confirmed the same incarnations, each was there after it had read of
// all others, and a member that is gone has no part in the group.
//
// In a group of hundreds this would be a hundred thousand questions. There rank 0 alone reads all
// records and all confirmations; the others read the *roll* that it writes, and in its *notice*
// that all have confirmed. They believe no more than in a small group: a member that the roll lacks
// or has wrongly does not confirm. Should rank 0 write neither (it may be a client that does not),
// the others look for themselves, at leisure.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rendezvous/invitation.h"
#include "rendezvous/member_record.h"
#include "rendezvous/store.h"
#include "weft/error.h"

namespace weft::rendezvous {

/// The error kUnavailable with `why`; it names the time limit if the deadline is past.
Error not_formed(const Invitation& invitation, base::Time deadline, const std::string& why);

class GroupFormation {
 public:
  /// `meeting` tells this group from those that the same processes formed at this store before.
  GroupFormation(Store& store, const Invitation& invitation, int meeting, MemberRecord mine,
                 base::Time deadline);

  /// The records of all members, by rank. Throws kUnavailable at the deadline, naming the missing
  /// ranks, and at once if the store fails; kInvalidArgument for a member with which no group can
  /// form.
  std::vector<MemberRecord> wait_for_all();

 private:
  struct Slot {
    std::optional<MemberRecord> record;
    bool confirmed = false;
  };
  enum class Progress { kNone, kSome };

  bool all_present() const { return present_ == invitation_.world_size; }
  bool all_confirmed() const { return confirmed_ == invitation_.world_size; }
  Slot& slot(int rank) { return slots_[static_cast<size_t>(rank)]; }

  // False at the deadline.
  bool form();
  Progress look_round();
  bool is_rank_0_of_many() const;
  bool follows_rank_0() const;
  Progress look_at_notice();
  Progress read_roll();
  void write_roll();
  void write_notice(bool formed);
  void write_missing();
  Progress look_for_confirmation(int rank);
  Progress look_for_record(int rank);
  Progress take_record(int rank, std::optional<MemberRecord> record);
  bool is_known(int rank, const std::optional<MemberRecord>& record);
  void set_record(int rank, std::optional<MemberRecord> record);
  void put(int rank, std::optional<MemberRecord> record);
  void confirm();

  base::Duration longest_pause() const;
  void refuse();
  // `cause` is empty if the deadline has passed.
  [[noreturn]] void give_up(const std::string& cause);
  std::string who_is_missing(base::Time until);
  std::vector<int> missed_by_rank_0(base::Time until);
  bool has_other_owner(base::Time until);
  void withdraw(base::Time until);

  Store& store_;
  const Invitation& invitation_;
  const int meeting_;
  const MemberRecord mine_;
  const base::Time deadline_;
  const base::Time look_alone_at_;  // without rank 0, if need be

  std::vector<Slot> slots_;  // by rank
  int present_ = 0;          // slots with a record
  int confirmed_ = 0;        // slots whose member has confirmed the records that are here
  Bytes confirmation_;       // this member's, when the records of all members are here
  int next_rank_ = 0;        // where the next round begins
  int rounds_ = 0;
  std::vector<int32_t> missing_;  // as rank 0 has written them
  base::Time write_missing_at_{};
};

}  // namespace weft::rendezvous

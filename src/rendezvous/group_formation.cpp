// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/group_formation.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/pause.h"

namespace weft::rendezvous {

namespace {

// A member that gives up looks for so long which members are missing.
constexpr auto kLastLook = std::chrono::milliseconds(100);
// A member that refuses another one leaves its record for so many pauses of the others, so that
// they find the mistake too, but not for longer than this.
constexpr int kPausesOfRefusal = 10;
constexpr base::Duration kLongestRefusal = std::chrono::seconds(1);
constexpr int kRanksInText = 32;

// A TcpStore answers about ten thousand questions per second. Members that wait ask it twenty times
// per second, those of large groups less often; all members together ask for so many ranks each
// time.
constexpr int kLooksOfAllMembers = 1024;
constexpr auto kPausePerMember = std::chrono::microseconds(400);
// In larger groups rank 0 looks for all, for so many ranks in each round, and the others follow it.
// After a while they look for themselves, in one round of so many.
constexpr int kSmallGroup = 32;
constexpr auto kPatienceWithRank0 = std::chrono::seconds(2);
constexpr int kLooksOfRank0 = 256;
constexpr int kRoundsPerOwnLook = 10;
// Of the roll, under one key: a store takes values of 64 KiB.
constexpr int kMembersPerPage = 128;
constexpr size_t kLargestPage = 65'536;
constexpr size_t kMostRanksSaid = 10'000;
constexpr auto kMissingInterval = std::chrono::milliseconds(500);

std::string record_key(int meeting, int rank) { return fmt::format("weft/{}/{}", meeting, rank); }
std::string confirmation_key(int meeting, int rank) {
  return fmt::format("weft/{}/{}/confirmed", meeting, rank);
}

std::string page_key(int meeting, int page) {
  return fmt::format("weft/{}/roll/{}", meeting, page);
}
std::string missing_key(int meeting) { return fmt::format("weft/{}/missing", meeting); }
std::string notice_key(int meeting) { return fmt::format("weft/{}/notice", meeting); }

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  const size_t shown = std::min<size_t>(ranks.size(), kRanksInText);
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (shown < ranks.size()) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

}  // namespace

Error not_formed(const Invitation& invitation, base::Time deadline, const std::string& why) {
  const bool late = std::chrono::steady_clock::now() >= deadline;
  const std::string limit = late ? fmt::format(" within {} ms", invitation.timeout.count()) : "";
  return Error(ErrorCode::kUnavailable,
               fmt::format("the group of {} at {} did not form{}; {}", invitation.world_size,
                           invitation.method, limit, why));
}

GroupFormation::GroupFormation(Store& store, const Invitation& invitation, int meeting,
                               MemberRecord mine, base::Time deadline)
    : store_(store),
      invitation_(invitation),
      meeting_(meeting),
      mine_(std::move(mine)),
      deadline_(deadline),
      look_alone_at_(std::chrono::steady_clock::now() + kPatienceWithRank0),
      slots_(static_cast<size_t>(invitation.world_size)) {}

std::vector<MemberRecord> GroupFormation::wait_for_all() {
  std::string cause;
  bool formed = false;
  try {
    formed = form();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) {
      refuse();
      throw;
    }
    cause = "; " + error.message();
  }
  if (!formed) give_up(cause);
  std::vector<MemberRecord> records;
  for (Slot& each : slots_) records.push_back(std::move(*each.record));
  return records;
}

bool GroupFormation::form() {
  store_.set(record_key(meeting_, invitation_.rank), encode_record(mine_), deadline_);
  put(invitation_.rank, mine_);
  Pause pause(deadline_, longest_pause());
  for (;;) {
    const Progress progress = look_round();
    if (all_confirmed()) {
      if (is_rank_0_of_many()) write_notice(/*formed=*/true);
      return true;
    }
    if (is_rank_0_of_many()) write_missing();
    if (pause.over()) return false;
    if (progress == Progress::kSome) {
      pause.reset();
    } else {
      pause.wait();
    }
  }
}

base::Duration GroupFormation::longest_pause() const {
  return std::max<base::Duration>(Pause::kLongest, kPausePerMember * invitation_.world_size);
}

// Looks for missing records, and when all are there for missing confirmations. In a large group one
// round looks at some of the members only, the next round at the next ones. A round ends at the
// deadline; the last one, which begins there, shortly after it.
GroupFormation::Progress GroupFormation::look_round() {
  Progress progress = Progress::kNone;
  if (follows_rank_0()) {
    progress = look_at_notice();
    if (all_confirmed() || progress == Progress::kSome) return progress;
    if (std::chrono::steady_clock::now() < look_alone_at_) return progress;
    if (++rounds_ % kRoundsPerOwnLook != 0) return progress;
    --rounds_;  // the next round looks too, if this one finds something
  }
  const base::Time until = std::max(deadline_, std::chrono::steady_clock::now() + kLastLook);
  int looks = is_rank_0_of_many() ? kLooksOfRank0
                                  : std::max(1, kLooksOfAllMembers / invitation_.world_size);
  for (int i = 0; i < invitation_.world_size && looks > 0; ++i) {
    const int rank = next_rank_;
    next_rank_ = (next_rank_ + 1) % invitation_.world_size;
    const Slot& looked_at = slot(rank);
    if (all_present() ? looked_at.confirmed : looked_at.record.has_value()) continue;
    if (std::chrono::steady_clock::now() >= until) break;
    --looks;
    const Progress found = all_present() ? look_for_confirmation(rank) : look_for_record(rank);
    if (found == Progress::kSome) progress = found;
  }
  if (follows_rank_0() && progress == Progress::kNone) ++rounds_;
  return progress;
}

bool GroupFormation::is_rank_0_of_many() const {
  return invitation_.rank == 0 && invitation_.world_size > kSmallGroup;
}
bool GroupFormation::follows_rank_0() const {
  return invitation_.rank != 0 && invitation_.world_size > kSmallGroup;
}

// For the errors of the others, which have not looked for themselves: the ranks that rank 0 misses.
// Twice a second, so that the store is asked little.
void GroupFormation::write_missing() {
  const base::Time now = std::chrono::steady_clock::now();
  if (now < write_missing_at_) return;
  write_missing_at_ = now + kMissingInterval;
  std::vector<int32_t> missing;
  for (int rank = 0; rank < invitation_.world_size; ++rank) {
    if (!slot(rank).record && missing.size() < kMostRanksSaid) missing.push_back(rank);
  }
  if (missing == missing_) return;
  store_.set(missing_key(meeting_), encode_missing({mine_.incarnation, missing}), deadline_);
  missing_ = std::move(missing);
}

// The notice: the confirmation of rank 0, then 1 if all members have confirmed the same, else 0.
void GroupFormation::write_notice(bool formed) {
  Bytes notice = confirmation_;
  notice.push_back(formed ? 1 : 0);
  store_.set(notice_key(meeting_), notice, deadline_);
}

// A notice and a roll may be those of an earlier attempt at this meeting, which failed: only those
// of the rank 0 that is here now count.
GroupFormation::Progress GroupFormation::look_at_notice() {
  if (!slot(0).record && look_for_record(0) == Progress::kNone) return Progress::kNone;
  std::optional<Bytes> notice = store_.find(notice_key(meeting_), deadline_);
  if (!notice || notice->empty()) return Progress::kNone;
  const bool formed = notice->back() == 1;
  notice->pop_back();
  if (!all_present() || *notice != confirmation_) return read_roll();
  if (!formed) return Progress::kNone;
  confirmed_ = invitation_.world_size;
  return Progress::kSome;
}

// Members that find the notice find the roll that it is about, or a later one.
void GroupFormation::write_roll() {
  for (int first = 0; first < invitation_.world_size; first += kMembersPerPage) {
    std::vector<MemberRecord> page;
    for (int rank = first; rank < std::min(first + kMembersPerPage, invitation_.world_size); ++rank)
      page.push_back(*slot(rank).record);
    const Bytes bytes = encode_page(page);
    if (bytes.size() > kLargestPage) return;  // very long names: the others look for themselves
    store_.set(page_key(meeting_, first / kMembersPerPage), bytes, deadline_);
  }
  write_notice(/*formed=*/false);
}

GroupFormation::Progress GroupFormation::read_roll() {
  std::vector<MemberRecord> roll;
  for (int first = 0; first < invitation_.world_size; first += kMembersPerPage) {
    const auto bytes = store_.find(page_key(meeting_, first / kMembersPerPage), deadline_);
    if (!bytes) return Progress::kNone;
    for (MemberRecord& record : decode_page(*bytes)) roll.push_back(std::move(record));
    // Rank 0 may be another process by now, or the roll that of an earlier one.
    if (roll.empty() || roll[0].incarnation != slot(0).record->incarnation)
      return look_for_record(0);
  }
  if (roll.size() != slots_.size()) return Progress::kNone;
  Progress progress = Progress::kNone;
  for (int rank = 1; rank < invitation_.world_size; ++rank) {
    std::optional<MemberRecord> record = std::move(roll[static_cast<size_t>(rank)]);
    if (rank == invitation_.rank || is_known(rank, record)) continue;
    check_compatible(mine_, invitation_.rank, *record, rank);
    set_record(rank, std::move(record));
    progress = Progress::kSome;
  }
  if (progress == Progress::kSome && all_present()) confirm();
  return progress;
}

GroupFormation::Progress GroupFormation::look_for_confirmation(int rank) {
  if (store_.find(confirmation_key(meeting_, rank), deadline_) == confirmation_) {
    slot(rank).confirmed = true;
    ++confirmed_;
    return Progress::kSome;
  }
  // The record may be that of a member that is gone. Another process may have taken its rank.
  return look_for_record(rank);
}

GroupFormation::Progress GroupFormation::look_for_record(int rank) {
  const auto found = store_.find(record_key(meeting_, rank), deadline_);
  std::optional<MemberRecord> record;
  if (found) record = decode_record(*found, rank);
  return take_record(rank, std::move(record));
}

GroupFormation::Progress GroupFormation::take_record(int rank, std::optional<MemberRecord> record) {
  if (is_known(rank, record)) return Progress::kNone;
  if (record) check_compatible(mine_, invitation_.rank, *record, rank);
  put(rank, std::move(record));
  return Progress::kSome;
}

bool GroupFormation::is_known(int rank, const std::optional<MemberRecord>& record) {
  const std::optional<MemberRecord>& known = slot(rank).record;
  return record.has_value() == known.has_value() &&
         (!record || record->incarnation == known->incarnation);
}

void GroupFormation::put(int rank, std::optional<MemberRecord> record) {
  set_record(rank, std::move(record));
  if (all_present()) confirm();
}

void GroupFormation::set_record(int rank, std::optional<MemberRecord> record) {
  Slot& changed = slot(rank);
  present_ += static_cast<int>(record.has_value()) - static_cast<int>(changed.record.has_value());
  changed.record = std::move(record);
  // The confirmations do not include this record.
  if (confirmed_ == 0) return;
  for (Slot& each : slots_) each.confirmed = false;
  confirmed_ = 0;
}

// The confirmation is the exclusive or of all incarnations, which are random numbers.
void GroupFormation::confirm() {
  uint64_t all = 0;
  for (const Slot& each : slots_) all ^= each.record->incarnation;
  confirmation_.clear();
  for (int shift = 0; shift < 64; shift += 8) {
    confirmation_.push_back(static_cast<uint8_t>(all >> shift));
  }
  store_.set(confirmation_key(meeting_, invitation_.rank), confirmation_, deadline_);
  slot(invitation_.rank).confirmed = true;
  ++confirmed_;
  if (is_rank_0_of_many()) write_roll();
}

// There is something wrong with another member, or with what the store says of it. The others that
// have to find that too read this member's record at their next look. Then this member withdraws: a
// record that stayed would be taken for that of a member that is still there.
void GroupFormation::refuse() {
  const base::Time now = std::chrono::steady_clock::now();
  const base::Duration time = std::min(kPausesOfRefusal * longest_pause(), kLongestRefusal);
  std::this_thread::sleep_until(std::min(base::later(now, time), deadline_));
  if (store_.usable()) withdraw(std::chrono::steady_clock::now() + kLastLook);
}

void GroupFormation::give_up(const std::string& cause) {
  const base::Time until = std::chrono::steady_clock::now() + kLastLook;
  const std::string who = who_is_missing(until);
  if (store_.usable()) withdraw(until);
  throw not_formed(invitation_, deadline_, who + cause);
}

// Members of a large group that follow rank 0 have looked for few others: rank 0 has said which it
// misses. All members look a last time for ranks that no round has looked for lately.
std::string GroupFormation::who_is_missing(base::Time until) {
  if (follows_rank_0() && store_.usable()) {
    try {
      const std::vector<int> ranks = missed_by_rank_0(until);
      if (!ranks.empty()) return "missing ranks: " + list_of(ranks);
      if (all_present() && !has_other_owner(until))
        return "all ranks came, but rank 0 has not heard a second time of all";
    } catch (const Error&) {
      // A store that is gone: this member says what it knows.
    }
  }
  std::vector<int> missing;
  std::vector<int> silent;
  int not_looked_for = 0;
  bool store_answers = store_.usable();
  for (int rank = 0; rank < invitation_.world_size; ++rank) {
    if (slot(rank).record) {
      if (!slot(rank).confirmed) silent.push_back(rank);
      continue;
    }
    bool came = false;
    if (store_answers && std::chrono::steady_clock::now() < until) {
      try {
        came = store_.find(record_key(meeting_, rank), until).has_value();
      } catch (const Error&) {
        store_answers = false;
      }
    } else if (follows_rank_0()) {
      ++not_looked_for;
      continue;
    }
    if (!came) missing.push_back(rank);
  }
  const char* why_not = store_answers ? "there was no time" : "the store does not answer";
  const std::string others =
      not_looked_for > 0 ? fmt::format(" ({} to look for {} others)", why_not, not_looked_for) : "";
  if (!missing.empty()) return "missing ranks: " + list_of(missing) + others;
  if (silent.empty() || not_looked_for > 0) return "the last members came too late" + others;
  if (has_other_owner(until)) {
    return fmt::format("another process joined as rank {} too", invitation_.rank);
  }
  return "ranks that came and then fell silent: " + list_of(silent);
}

// Nobody if rank 0 has not come, or has said nothing. What an earlier rank 0 has said does not
// count.
std::vector<int> GroupFormation::missed_by_rank_0(base::Time until) {
  if (!slot(0).record) look_for_record(0);
  const auto said = store_.find(missing_key(meeting_), until);
  if (!slot(0).record || !said) return {};
  const MissingRanks missing = decode_missing(*said);
  return missing.incarnation == slot(0).record->incarnation ? missing.ranks : std::vector<int>();
}

bool GroupFormation::has_other_owner(base::Time until) {
  try {
    const auto found = store_.find(record_key(meeting_, invitation_.rank), until);
    return found && decode_record(*found, invitation_.rank).incarnation != mine_.incarnation;
  } catch (const Error&) {
    return false;
  }
}

// Removes this member's record: the others must not wait for a member that has left, nor connect to
// its address.
void GroupFormation::withdraw(base::Time until) {
  try {
    if (has_other_owner(until)) return;
    store_.remove(record_key(meeting_, invitation_.rank), until);
    store_.remove(confirmation_key(meeting_, invitation_.rank), until);
    if (is_rank_0_of_many()) store_.remove(notice_key(meeting_), until);
  } catch (const Error&) {
    // The store is gone, so the other members cannot read the record either.
  }
}

}  // namespace weft::rendezvous

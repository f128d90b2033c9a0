// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/group_formation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/pause.h"

namespace weft::rendezvous {

namespace {

// A member that gives up looks for so long which members are missing.
constexpr auto kLastLook = std::chrono::milliseconds(100);
constexpr int kRanksInText = 32;

// A TcpStore answers about ten thousand questions per second. Members that wait ask it twenty times
// per second; all members together ask for so many ranks each time.
constexpr int kLooksOfAllMembers = 1024;

std::string record_key(int meeting, int rank) { return fmt::format("weft/{}/{}", meeting, rank); }
std::string confirmation_key(int meeting, int rank) {
  return fmt::format("weft/{}/{}/confirmed", meeting, rank);
}

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
      slots_(static_cast<size_t>(invitation.world_size)) {}

std::vector<MemberRecord> GroupFormation::wait_for_all() {
  std::string cause;
  bool formed = false;
  try {
    formed = form();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
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
  Pause pause(deadline_);
  for (;;) {
    const Progress progress = look_round();
    if (all_confirmed()) return true;
    if (pause.over()) return false;
    if (progress == Progress::kSome) {
      pause.reset();
    } else {
      pause.wait();
    }
  }
}

// Looks for missing records, and when all are there for missing confirmations. In a large group one
// round looks at some of the members only, the next round at the next ones.
GroupFormation::Progress GroupFormation::look_round() {
  Progress progress = Progress::kNone;
  int looks = std::max(1, kLooksOfAllMembers / invitation_.world_size);
  for (int i = 0; i < invitation_.world_size && looks > 0; ++i) {
    const int rank = next_rank_;
    next_rank_ = (next_rank_ + 1) % invitation_.world_size;
    const Slot& looked_at = slot(rank);
    if (all_present() ? looked_at.confirmed : looked_at.record.has_value()) continue;
    --looks;
    const Progress found = all_present() ? look_for_confirmation(rank) : look_for_record(rank);
    if (found == Progress::kSome) progress = found;
  }
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
  const std::optional<MemberRecord>& known = slot(rank).record;
  const bool same = record.has_value() == known.has_value() &&
                    (!record || record->incarnation == known->incarnation);
  if (same) return Progress::kNone;
  if (record) check_compatible(mine_, invitation_.rank, *record, rank);
  put(rank, std::move(record));
  return Progress::kSome;
}

void GroupFormation::put(int rank, std::optional<MemberRecord> record) {
  Slot& changed = slot(rank);
  present_ += static_cast<int>(record.has_value()) - static_cast<int>(changed.record.has_value());
  changed.record = std::move(record);
  // The confirmations do not include this record.
  if (confirmed_ > 0) {
    for (Slot& each : slots_) each.confirmed = false;
    confirmed_ = 0;
  }
  if (all_present()) confirm();
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
}

void GroupFormation::give_up(const std::string& cause) {
  const base::Time until = std::chrono::steady_clock::now() + kLastLook;
  const std::string who = who_is_missing(until);
  if (store_.usable()) withdraw(until);
  throw not_formed(invitation_, deadline_, who + cause);
}

// Looks a last time for ranks that no round has looked for lately: they may have come.
std::string GroupFormation::who_is_missing(base::Time until) {
  std::vector<int> missing;
  std::vector<int> silent;
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
    }
    if (!came) missing.push_back(rank);
  }
  if (!missing.empty()) return "missing ranks: " + list_of(missing);
  if (silent.empty()) return "the last members came too late";
  if (has_other_owner(until)) {
    return fmt::format("another process joined as rank {} too", invitation_.rank);
  }
  return "ranks that came and then fell silent: " + list_of(silent);
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
  } catch (const Error&) {
    // The store is gone, so the other members cannot read the record either.
  }
}

}  // namespace weft::rendezvous

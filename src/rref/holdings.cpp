// SPDX-License-Identifier: BSD-3-Clause
#include "rref/holdings.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/room.h"

namespace weft::rref {

namespace {
using Kind = Step::Kind;
}

Holdings::Session* Holdings::find(Worker owner) {
  auto found = sessions_.find(owner);
  return found == sessions_.end() ? nullptr : &found->second;
}

// A session in which nothing is held is not renewed, and the owner may have ended it; what comes
// next belongs to a new one.
Holdings::Session& Holdings::session(Worker owner, base::Time now) {
  Session& session = sessions_[owner];
  const bool idle = session.entries.empty() && session.queue.empty() && !session.unanswered;
  if (idle && session.sequence > 0 && now >= session.sure_until - 2 * (lease_ / 3)) {
    ++session.epoch;
    session.sequence = 0;
    session.sure_until = base::Time{};
  }
  session.owner_lost = false;
  return session;
}

base::Time Holdings::renew_at(const Session& session) const { return session.spoke + lease_ / 3; }

// Each entry that is not lost may add a step to the queue when memory lacks: its release.
void Holdings::make_room(Session& its, size_t more) {
  base::make_room(its.queue, its.queue.size() + its.entries.size() + more);
}

RRefId Holdings::create(Worker owner, base::Time now) {
  Session& its = session(owner, now);
  make_room(its, 1);
  // The first creation begins the session. A later one may be long on its way, behind large calls,
  // and does not take the place of a renewal.
  if (its.entries.empty()) its.spoke = std::max(its.spoke, now);
  const RRefId id{owner, self_, its.epoch, its.next_serial++};
  Entry& entry = its.entries[id];
  entry.state = State::kCreating;
  entry.holds = 1;
  entry.creation_open = true;
  return id;
}

void Holdings::on_created(const RRefId& id, CreationOutcome outcome, Changes& changes) {
  Session* its = find(id.owner);
  if (!its) return;
  auto found = its->entries.find(id);
  if (found == its->entries.end()) return;
  base::make_room(changes.held, changes.held.size() + 1);
  base::make_room(changes.lost, changes.lost.size() + 1);
  Entry& entry = found->second;
  entry.creation_open = false;
  if (entry.state == State::kCreating) {
    if (outcome == CreationOutcome::kAnswered) {
      entry.state = State::kHeld;
      changes.held.push_back(id);
    } else {
      // If it arrives after all it must not be made: nobody here would ever release it.
      entry.state = State::kLost;
      its->queue.push_back({Kind::kRelease, id});
      changes.lost.push_back(id);
    }
  }
  forget_if_idle(*its, found);
}

Holdings::State Holdings::arrive(const RRefId& id, bool may_precede_creation, base::Time now) {
  Session& its = session(id.owner, now);
  make_room(its, 2);
  Entry& entry = its.entries[id];
  ++entry.holds;
  // Other workers may have kept an object that this worker lost, and now send a reference to it.
  if (entry.state == State::kLost && !entry.creation_open) entry.state = State::kRegistering;
  if (entry.state == State::kRegistering && !entry.queued) {
    entry.early = may_precede_creation;
    entry.queued = true;
    its.queue.push_back({may_precede_creation ? Kind::kRegisterEarly : Kind::kRegister, id});
    its.urgent = true;
  }
  return entry.state;
}

void Holdings::drop(const RRefId& id) {
  Session* its = find(id.owner);
  if (!its) return;
  auto found = its->entries.find(id);
  if (found == its->entries.end() || found->second.holds == 0) return;
  --found->second.holds;
  forget_if_idle(*its, found);
}

// The last hold is gone: the owner is told, unless it must be told something else first.
void Holdings::forget_if_idle(Session& its, std::map<RRefId, Entry>::iterator found) {
  const auto& [id, entry] = *found;
  if (entry.holds > 0 || entry.creation_open || entry.queued) return;
  if (entry.state == State::kHeld) its.queue.push_back({Kind::kRelease, id});
  its.entries.erase(found);
}

void Holdings::accept(Worker sender, const RRefId& id, base::Time now) {
  Session& its = session(sender, now);
  make_room(its, 1);
  its.queue.push_back({Kind::kAccept, id});
}

std::optional<Holdings::State> Holdings::state(const RRefId& id) const {
  const Session* its = find(id.owner);
  if (!its) return std::nullopt;
  auto found = its->entries.find(id);
  return found == its->entries.end() ? std::nullopt : std::optional(found->second.state);
}

bool Holdings::is_dropped_creation(const RRefId& id) const {
  const Session* its = find(id.owner);
  if (!its) return false;
  auto found = its->entries.find(id);
  return found != its->entries.end() && found->second.holds == 0 && found->second.creation_open;
}

base::Time Holdings::sure_until(const RRefId& id) const {
  const Session* its = find(id.owner);
  return its ? its->sure_until : base::Time{};
}

bool Holdings::renewal_due(const Session& its, base::Time now) const {
  return !its.entries.empty() && !its.owner_lost && now >= renew_at(its);
}

std::optional<SessionMessage> Holdings::next_message(Worker owner, base::Time now) {
  Session* its = find(owner);
  if (!its) return std::nullopt;
  if (its->unanswered) return now >= its->repeat_at ? repeat(owner, now) : std::nullopt;
  if (its->queue.empty() && !renewal_due(*its, now)) return std::nullopt;
  const auto first = its->queue.begin();
  const auto last = first + static_cast<ptrdiff_t>(std::min(its->queue.size(), kMostSteps));
  SessionMessage message{its->epoch, its->sequence + 1, {first, last}};
  its->unanswered = message;
  // From here on no memory is needed.
  its->queue.erase(first, last);  // keeps its room
  give_back_room(*its);
  ++its->sequence;
  its->asked = its->spoke = now;
  its->repeated = false;
  its->repeat_at = repeat_at_last(now);
  its->urgent = std::any_of(its->queue.begin(), its->queue.end(), registers);
  return message;
}

// The sender of a message says by repeat_later() when to send it once more. Should the sender have
// no memory for that, the message is sent once more at this time.
base::Time Holdings::repeat_at_last(base::Time now) const { return base::later(now, lease_ / 2); }

// After many releases at once.
void Holdings::give_back_room(Session& its) {
  const size_t needed = its.queue.size() + its.entries.size();
  if (its.queue.capacity() < kMostSteps || its.queue.capacity() / 4 < needed) return;
  try {
    std::vector<Step> smaller;
    smaller.reserve(needed);
    smaller.insert(smaller.end(), its.queue.begin(), its.queue.end());
    its.queue.swap(smaller);
  } catch (const std::bad_alloc&) {
    // Another time.
  }
}

std::optional<SessionMessage> Holdings::repeat(Worker owner, base::Time now) {
  Session* its = find(owner);
  if (!its) return std::nullopt;
  if (!its->unanswered) return next_message(owner, now);
  its->repeat_at = repeat_at_last(now);
  its->repeated = true;
  return its->unanswered;
}

void Holdings::repeat_later(Worker owner, base::Time at) {
  Session* its = find(owner);
  if (its && its->unanswered) its->repeat_at = at;
}

bool Holdings::was_repeated(Worker owner) const {
  const Session* its = find(owner);
  return its && its->unanswered && its->repeated;
}

void Holdings::on_reply(Worker owner, uint64_t epoch, uint64_t sequence, const SessionReply& reply,
                        base::Time now, Changes& changes) {
  Session* its = find(owner);
  if (!its || !its->unanswered || its->epoch != epoch || its->unanswered->sequence != sequence) {
    return;  // an answer that came before
  }
  if (reply.status == SessionReply::Status::kOver) {
    begin_epoch(*its, changes);
    return;
  }
  base::make_room(changes.held, changes.held.size() + its->unanswered->steps.size());
  base::make_room(changes.refused, changes.refused.size() + its->unanswered->steps.size());
  const SessionMessage message = *std::exchange(its->unanswered, std::nullopt);
  its->sure_until = base::later(its->asked, lease_);
  size_t answer = 0;
  for (const Step& step : message.steps) {
    if (!registers(step)) continue;
    const bool granted = answer < reply.granted.size() && reply.granted[answer] != 0;
    ++answer;
    auto found = its->entries.find(step.id);
    if (found == its->entries.end() || found->second.state != State::kRegistering) continue;
    found->second.queued = false;
    found->second.state = granted ? State::kHeld : State::kLost;
    (granted ? changes.held : changes.refused).push_back(step.id);
    forget_if_idle(*its, found);
  }
  (void)now;
}

// The owner has dropped this worker: the objects it held are lost, registrations without an answer
// are asked for anew.
void Holdings::begin_epoch(Session& its, Changes& changes) {
  base::make_room(changes.lost, changes.lost.size() + its.entries.size());
  std::vector<Step> again;
  again.reserve(2 * its.entries.size() + its.queue.size() +
                (its.unanswered ? its.unanswered->steps.size() : 0));
  const std::optional<SessionMessage> unanswered = std::exchange(its.unanswered, std::nullopt);
  ++its.epoch;
  its.sequence = 0;
  its.sure_until = base::Time{};
  for (auto entry = its.entries.begin(); entry != its.entries.end();) {
    auto current = entry++;
    Entry& held = current->second;
    if (held.state == State::kRegistering) {
      again.push_back({held.early ? Kind::kRegisterEarly : Kind::kRegister, current->first});
      continue;
    }
    if (held.state == State::kHeld || held.state == State::kCreating) {
      held.state = State::kLost;
      changes.lost.push_back(current->first);
    }
    forget_if_idle(its, current);
  }
  // Acceptances concern handles that the other worker holds; the end of this session left them.
  const auto keep_acceptances = [&again](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      if (step.kind == Kind::kAccept) again.push_back(step);
    }
  };
  if (unanswered) keep_acceptances(unanswered->steps);
  keep_acceptances(its.queue);
  its.queue = std::move(again);
  its.urgent = std::any_of(its.queue.begin(), its.queue.end(), registers);
}

void Holdings::on_owner_lost(Worker owner, Changes& changes) {
  Session* its = find(owner);
  if (!its) return;
  base::make_room(changes.lost, changes.lost.size() + its->entries.size());
  its->unanswered.reset();
  its->queue.clear();
  its->urgent = false;
  its->owner_lost = true;
  // Should the owner live after all, a new epoch makes it end the session that was given up here.
  ++its->epoch;
  its->sequence = 0;
  its->sure_until = base::Time{};
  for (auto entry = its->entries.begin(); entry != its->entries.end();) {
    auto current = entry++;
    Entry& held = current->second;
    held.queued = false;
    if (held.state != State::kLost) changes.lost.push_back(current->first);
    held.state = State::kLost;
    forget_if_idle(*its, current);
  }
}

std::vector<Worker> Holdings::owners_to_tell(base::Time now, Say what) const {
  std::vector<Worker> owners;
  for (const auto& [owner, its] : sessions_) {
    const bool has_to_say = what == Say::kEverything ? !its.queue.empty() : its.urgent;
    const bool is_due = its.unanswered ? now >= its.repeat_at : has_to_say || renewal_due(its, now);
    if (is_due) owners.push_back(owner);
  }
  return owners;
}

bool Holdings::has_unsaid() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& each) {
    return !each.second.queue.empty() && !each.second.unanswered;
  });
}

bool Holdings::has_unfinished() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& each) {
    const Session& its = each.second;
    return !its.queue.empty() || (its.unanswered && !its.unanswered->steps.empty());
  });
}

base::Time Holdings::next() const {
  base::Time earliest = base::Time::max();
  for (const auto& [owner, its] : sessions_) {
    if (its.unanswered) {
      earliest = std::min(earliest, its.repeat_at);
    } else if (!its.entries.empty() && !its.owner_lost) {
      earliest = std::min(earliest, renew_at(its));
    }
  }
  return earliest;
}

size_t Holdings::references(Worker owner) const {
  const Session* its = find(owner);
  return its ? its->entries.size() : 0;
}

size_t Holdings::references() const {
  size_t count = 0;
  for (const auto& [owner, its] : sessions_) count += its.entries.size();
  return count;
}

}  // namespace weft::rref

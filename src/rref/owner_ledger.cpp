// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owner_ledger.h"

#include <algorithm>
#include <utility>

#include "base/room.h"

namespace weft::rref {

void OwnerLedger::end_local(const RRefId& id) {
  auto found = objects_.find(id);
  if (found == objects_.end()) return;
  found->second.local = false;
  if (found->second.holders.empty()) erase(id);
}

// After an addition failed: an object that nobody has is not kept.
void OwnerLedger::take_back(const RRefId& id) {
  auto found = objects_.find(id);
  if (found != objects_.end() && !found->second.local && found->second.holders.empty()) erase(id);
}

void OwnerLedger::erase(const RRefId& id) {
  objects_.erase(id);
  awaited_.erase(id);
}

OwnerLedger::Session* OwnerLedger::open(Worker holder, uint64_t epoch, base::Time now,
                                        Changes& changes) {
  auto found = sessions_.find(holder);
  if (found == sessions_.end()) {
    make_room_for_awaited(changes);
    found = sessions_.try_emplace(holder).first;
  } else if (epoch > found->second.epoch) {
    make_room_for_end(found->second, changes);
    end(holder, found->second, changes);
  } else {
    const bool goes_on = epoch == found->second.epoch && !found->second.over;
    return goes_on ? &found->second : nullptr;
  }
  Session& session = found->second;
  session = Session{};
  session.epoch = epoch;
  give_up_awaited(holder, epoch, changes);
  session.lease_until = base::later(now, lease_);
  return &session;
}

bool OwnerLedger::create(const RRefId& id, base::Time now, Changes& changes) {
  Session* session = open(id.creator, id.epoch, now, changes);
  if (!session) return false;
  if (!faults_.no_tombstones && session->created.contains(id.serial)) return false;
  session->lease_until = std::max(session->lease_until, base::later(now, lease_));
  Object& object = objects_[id];
  if (object.failed) {  // the workers that waited were told that it will not come
    session->created.insert(id.serial);
    return false;
  }
  try {
    add_holder(id.creator, *session, id, object);
    session->created.insert(id.serial);  // last: the creator can then still give the object up
  } catch (...) {
    session->held.erase(id);
    object.holders.erase(id.creator);
    take_back(id);
    throw;
  }
  awaited_.erase(id);
  return true;
}

SessionReply OwnerLedger::apply(Worker holder, const SessionMessage& message, base::Time now,
                                Changes& changes) {
  Session* session = open(holder, message.epoch, now, changes);
  const SessionReply over{SessionReply::Status::kOver, {}};
  if (!session) return over;
  if (!faults_.no_tombstones) {
    if (message.sequence == session->applied) return session->last_reply;
    if (message.sequence < session->applied) return {};  // its sender has the answer already
    if (message.sequence != session->applied + 1) {
      make_room_for_end(*session, changes);
      end(holder, *session, changes);
      return over;
    }
  }
  session->lease_until = base::later(now, lease_);
  SessionReply& reply = session->reply_so_far;
  for (; session->steps_done < message.steps.size(); ++session->steps_done) {
    const Step& step = message.steps[session->steps_done];
    switch (step.kind) {
      case Step::Kind::kRegister:
      case Step::Kind::kRegisterEarly:
        base::make_room(reply.granted, reply.granted.size() + 1);
        base::make_room(changes.registered, changes.registered.size() + 1);
        reply.granted.push_back(register_holder(holder, *session, step, now) ? 1 : 0);
        if (reply.granted.back()) changes.registered.push_back(step.id);
        break;
      case Step::Kind::kRelease:
        release(holder, *session, step.id, changes);
        break;
      case Step::Kind::kAccept:
        changes.accepted.emplace_back(holder, step.id);
        break;
    }
  }
  SessionReply answer = reply;
  session->last_reply = std::exchange(reply, {});
  session->steps_done = 0;
  session->applied = message.sequence;
  return answer;
}

// Entirely or not at all.
void OwnerLedger::add_holder(Worker holder, Session& session, const RRefId& id, Object& object) {
  const bool fresh = session.held.insert(id).second;
  try {
    object.holders.insert(holder);
  } catch (...) {
    if (fresh) session.held.erase(id);
    throw;
  }
}

bool OwnerLedger::register_holder(Worker holder, Session& session, const Step& step,
                                  base::Time now) {
  Object* object = find_or_await(step.id, step.kind == Step::Kind::kRegisterEarly, now);
  if (!object) return false;
  try {
    add_holder(holder, session, step.id, *object);
  } catch (...) {
    take_back(step.id);
    throw;
  }
  return true;
}

bool OwnerLedger::await_local(const RRefId& id, base::Time now) {
  Object* object = find_or_await(id, true, now);
  if (object) object->local = true;
  return object != nullptr;
}

OwnerLedger::Object* OwnerLedger::find_or_await(const RRefId& id, bool may_precede_creation,
                                                base::Time now) {
  auto found = objects_.find(id);
  if (found != objects_.end()) return &found->second;
  if (!may_precede_creation || creator(id) == Creator::kGivenUp) return nullptr;
  Object& object = objects_[id];
  try {
    awaited_[id] = base::later(now, lease_);
  } catch (...) {
    objects_.erase(id);
    throw;
  }
  return &object;
}

OwnerLedger::Creator OwnerLedger::creator(const RRefId& id) const {
  auto found = sessions_.find(id.creator);
  if (found == sessions_.end() || found->second.epoch < id.epoch) return Creator::kNotHeardYet;
  const Session& session = found->second;
  const bool comes = session.epoch == id.epoch && !session.over &&
                     (faults_.no_tombstones || !session.created.contains(id.serial));
  return comes ? Creator::kInSession : Creator::kGivenUp;
}

void OwnerLedger::release(Worker holder, Session& session, const RRefId& id, Changes& changes) {
  base::make_room(changes.never_created, changes.never_created.size() + 1);
  base::make_room(changes.unheld, changes.unheld.size() + 1);
  if (id.creator == holder && id.epoch == session.epoch && !session.created.contains(id.serial)) {
    session.created.insert(id.serial);
    if (awaited_.erase(id) > 0) changes.never_created.push_back(id);
  }
  if (session.held.erase(id) > 0) drop_holder(holder, id, changes);
}

// The caller has made room for the change, as for those of end().
void OwnerLedger::drop_holder(Worker holder, const RRefId& id, Changes& changes) {
  auto found = objects_.find(id);
  if (found == objects_.end() || found->second.holders.erase(holder) == 0) return;
  if (!found->second.holders.empty()) return;
  changes.unheld.push_back(id);
  if (!found->second.local) erase(id);
}

void OwnerLedger::make_room_for_end(const Session& session, Changes& changes) const {
  base::make_room(changes.unheld, changes.unheld.size() + session.held.size());
  make_room_for_awaited(changes);
}

void OwnerLedger::make_room_for_awaited(Changes& changes) const {
  base::make_room(changes.never_created, changes.never_created.size() + awaited_.size());
}

void OwnerLedger::end(Worker holder, Session& session, Changes& changes) {
  session.over = true;
  for (const RRefId& id : std::exchange(session.held, {})) drop_holder(holder, id, changes);
  give_up_awaited(holder, session.epoch + 1, changes);
}

// Objects that `creator` was to create, and others wait for, will not come.
void OwnerLedger::give_up_awaited(Worker creator, uint64_t before_epoch, Changes& changes) {
  std::erase_if(awaited_, [&](const auto& each) {
    const RRefId& id = each.first;
    if (id.creator != creator || id.epoch >= before_epoch) return false;
    changes.never_created.push_back(id);
    return true;
  });
}

void OwnerLedger::give_up_all_awaited(Changes& changes) {
  make_room_for_awaited(changes);
  for (const auto& [id, until] : std::exchange(awaited_, {})) changes.never_created.push_back(id);
}

void OwnerLedger::expire(base::Time now, Changes& changes) {
  if (faults_.no_leases) return;
  for (auto& [holder, session] : sessions_) {
    if (session.over || session.lease_until > now) continue;
    make_room_for_end(session, changes);
    end(holder, session, changes);
  }
  if (faults_.no_leases_of_awaited) return;
  make_room_for_awaited(changes);
  std::erase_if(awaited_, [&](const auto& each) {
    const auto& [id, until] = each;
    if (until > now || creator(id) != Creator::kNotHeardYet) return false;
    objects_.at(id).failed = true;
    changes.never_created.push_back(id);
    return true;
  });
}

base::Time OwnerLedger::next() const {
  base::Time earliest = base::Time::max();
  for (const auto& [holder, session] : sessions_) {
    if (!session.over) earliest = std::min(earliest, session.lease_until);
  }
  for (const auto& [id, until] : awaited_) {
    if (creator(id) == Creator::kNotHeardYet) earliest = std::min(earliest, until);
  }
  return earliest;
}

bool OwnerLedger::is_held(const RRefId& id) const {
  auto found = objects_.find(id);
  return found != objects_.end() && !found->second.holders.empty();
}

std::vector<Worker> OwnerLedger::holders(const RRefId& id) const {
  auto found = objects_.find(id);
  if (found == objects_.end()) return {};
  return {found->second.holders.begin(), found->second.holders.end()};
}

size_t OwnerLedger::holdings() const {
  size_t count = 0;
  for (const auto& [holder, session] : sessions_) count += session.held.size();
  return count;
}

}  // namespace weft::rref

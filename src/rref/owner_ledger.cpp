// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owner_ledger.h"

#include <algorithm>
#include <utility>

namespace weft::rref {

void OwnerLedger::end_local(const RRefId& id) {
  auto found = objects_.find(id);
  if (found == objects_.end()) return;
  found->second.local = false;
  if (found->second.holders.empty()) objects_.erase(found);
}

OwnerLedger::Session* OwnerLedger::open(Worker user, uint64_t epoch, base::Time now,
                                        Changes& changes) {
  auto [found, fresh] = sessions_.try_emplace(user);
  Session& session = found->second;
  if (fresh || epoch > session.epoch) {
    if (!fresh) end(user, session, changes);
    session = Session{};
    session.epoch = epoch;
    session.lease_until = base::later(now, lease_);
    return &session;
  }
  if (session.over || epoch < session.epoch) return nullptr;
  return &session;
}

bool OwnerLedger::create(Worker user, uint64_t epoch, const RRefId& id, base::Time now,
                         Changes& changes) {
  Session* session = open(user, epoch, now, changes);
  if (!session) return false;
  if (!faults_.no_tombstones && session->created.contains(id.serial)) return false;
  session->created.insert(id.serial);
  session->lease_until = std::max(session->lease_until, base::later(now, lease_));
  Object& object = objects_[id];
  object.awaited = false;
  object.holders.insert(user);
  session->held.insert(id);
  return true;
}

SessionReply OwnerLedger::apply(Worker user, const SessionMessage& message, base::Time now,
                                Changes& changes) {
  Session* session = open(user, message.epoch, now, changes);
  const SessionReply over{SessionReply::Status::kOver, {}};
  if (!session) return over;
  if (!faults_.no_tombstones) {
    if (message.sequence == session->applied) return session->last_reply;
    if (message.sequence < session->applied) return {};  // its sender has the answer already
    if (message.sequence != session->applied + 1) {
      end(user, *session, changes);
      return over;
    }
  }
  session->applied = message.sequence;
  session->lease_until = base::later(now, lease_);
  SessionReply reply;
  for (const Step& step : message.steps) {
    switch (step.kind) {
      case Step::Kind::kRegister:
      case Step::Kind::kRegisterEarly:
        reply.granted.push_back(register_holder(user, *session, step) ? 1 : 0);
        break;
      case Step::Kind::kRelease:
        release(user, *session, step.id, changes);
        break;
      case Step::Kind::kAccept:
        changes.accepted.emplace_back(user, step.id);
        break;
    }
  }
  session->last_reply = reply;
  return reply;
}

bool OwnerLedger::register_holder(Worker user, Session& session, const Step& step) {
  auto found = objects_.find(step.id);
  if (found == objects_.end()) {
    if (step.kind != Step::Kind::kRegisterEarly || creation_was_given_up(step.id)) return false;
    found = objects_.try_emplace(step.id).first;
    found->second.awaited = true;
  }
  found->second.holders.insert(user);
  session.held.insert(step.id);
  return true;
}

bool OwnerLedger::creation_was_given_up(const RRefId& id) const {
  auto creator = sessions_.find(id.creator);
  return !faults_.no_tombstones && creator != sessions_.end() &&
         (creator->second.over || creator->second.created.contains(id.serial));
}

void OwnerLedger::release(Worker user, Session& session, const RRefId& id, Changes& changes) {
  if (id.creator == user && !session.created.contains(id.serial)) {
    session.created.insert(id.serial);
    auto found = objects_.find(id);
    if (found != objects_.end() && found->second.awaited) changes.never_created.push_back(id);
  }
  if (session.held.erase(id) > 0) drop_holder(user, id, changes);
}

void OwnerLedger::drop_holder(Worker user, const RRefId& id, Changes& changes) {
  auto found = objects_.find(id);
  if (found == objects_.end() || found->second.holders.erase(user) == 0) return;
  if (!found->second.holders.empty()) return;
  changes.unheld.push_back(id);
  if (!found->second.local) objects_.erase(found);
}

void OwnerLedger::end(Worker user, Session& session, Changes& changes) {
  session.over = true;
  for (const RRefId& id : std::exchange(session.held, {})) drop_holder(user, id, changes);
  // What it was to create and others wait for will not come.
  for (const auto& [id, object] : objects_) {
    if (object.awaited && id.creator == user) changes.never_created.push_back(id);
  }
}

void OwnerLedger::expire(base::Time now, Changes& changes) {
  if (faults_.no_leases) return;
  for (auto& [user, session] : sessions_) {
    if (!session.over && session.lease_until <= now) end(user, session, changes);
  }
}

base::Time OwnerLedger::next() const {
  base::Time earliest = base::Time::max();
  for (const auto& [user, session] : sessions_) {
    if (!session.over) earliest = std::min(earliest, session.lease_until);
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
  for (const auto& [user, session] : sessions_) count += session.held.size();
  return count;
}

}  // namespace weft::rref

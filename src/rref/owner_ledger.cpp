// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owner_ledger.h"

#include <algorithm>
#include <utility>

namespace weft::rref {

void OwnerLedger::end_local(const RRefId& id) {
  auto found = objects_.find(id);
  if (found == objects_.end()) return;
  found->second.local = false;
  if (found->second.holders.empty()) erase(id);
}

void OwnerLedger::erase(const RRefId& id) {
  objects_.erase(id);
  awaited_.erase(id);
}

OwnerLedger::Session* OwnerLedger::open(Worker holder, uint64_t epoch, base::Time now,
                                        Changes& changes) {
  auto [found, fresh] = sessions_.try_emplace(holder);
  Session& session = found->second;
  if (fresh || epoch > session.epoch) {
    if (!fresh) end(holder, session, changes);
    session = Session{};
    session.epoch = epoch;
    give_up_awaited(holder, epoch, changes);
    session.lease_until = base::later(now, lease_);
    return &session;
  }
  if (session.over || epoch < session.epoch) return nullptr;
  return &session;
}

bool OwnerLedger::create(const RRefId& id, base::Time now, Changes& changes) {
  Session* session = open(id.creator, id.epoch, now, changes);
  if (!session) return false;
  if (!faults_.no_tombstones && session->created.contains(id.serial)) return false;
  session->created.insert(id.serial);
  session->lease_until = std::max(session->lease_until, base::later(now, lease_));
  Object& object = objects_[id];
  if (object.failed) return false;  // the workers that waited were told that it will not come
  awaited_.erase(id);
  object.holders.insert(id.creator);
  session->held.insert(id);
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
      end(holder, *session, changes);
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
  session->last_reply = reply;
  return reply;
}

bool OwnerLedger::register_holder(Worker holder, Session& session, const Step& step,
                                  base::Time now) {
  Object* object = find_or_await(step.id, step.kind == Step::Kind::kRegisterEarly, now);
  if (!object) return false;
  object->holders.insert(holder);
  session.held.insert(step.id);
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
  awaited_[id] = base::later(now, lease_);
  return &objects_[id];
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
  if (id.creator == holder && id.epoch == session.epoch && !session.created.contains(id.serial)) {
    session.created.insert(id.serial);
    if (awaited_.erase(id) > 0) changes.never_created.push_back(id);
  }
  if (session.held.erase(id) > 0) drop_holder(holder, id, changes);
}

void OwnerLedger::drop_holder(Worker holder, const RRefId& id, Changes& changes) {
  auto found = objects_.find(id);
  if (found == objects_.end() || found->second.holders.erase(holder) == 0) return;
  if (!found->second.holders.empty()) return;
  changes.unheld.push_back(id);
  if (!found->second.local) erase(id);
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
  for (const auto& [id, until] : std::exchange(awaited_, {})) changes.never_created.push_back(id);
}

void OwnerLedger::expire(base::Time now, Changes& changes) {
  if (faults_.no_leases) return;
  for (auto& [holder, session] : sessions_) {
    if (!session.over && session.lease_until <= now) end(holder, session, changes);
  }
  if (faults_.no_leases_of_awaited) return;
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

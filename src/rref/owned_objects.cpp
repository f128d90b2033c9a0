// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owned_objects.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "rref/id_text.h"
#include "rref/worker_names.h"
#include "weft/detail/rref_handle.h"

namespace weft::rref {

OwnedObjects::OwnedObjects(std::shared_ptr<rpc::Runtime> runtime, std::weak_ptr<Keeper> keeper)
    : runtime_(std::move(runtime)),
      keeper_(std::move(keeper)),
      lease_(runtime_->options.rref_lease),
      ledger_(lease_) {}

// --- objects ---------------------------------------------------------------------------------

Ref<RRefObject> OwnedObjects::make(bool may_be_awaited) {
  const Worker self = self_of(*runtime_);
  const base::MutexLock lock(mutex_);
  const RRefId id{self, self, 0, next_number_++};
  if (!may_be_awaited) return detail::make_ref<RRefObject>(keeper_, id);
  to_be_made_.insert(id);
  return object_for(id);
}

void OwnedObjects::on_creation_failed(const RRefId& id) {
  Aftermath aftermath;
  {
    const base::MutexLock lock(mutex_);
    if (to_be_made_.erase(id) == 0) return;
    if (Ref<RRefObject> object = find_existing(id))
      aftermath.never_created.push_back(std::move(object));
  }
  finish(aftermath);
}

void OwnedObjects::share(RRefObject& object) {
  const base::MutexLock lock(mutex_);
  if (objects_.emplace(object.id(), &object).second) ledger_.begin_local(object.id());
}

// The object with this id, made if there is none yet.
Ref<RRefObject> OwnedObjects::object_for(const RRefId& id) {
  if (Ref<RRefObject> object = find_existing(id)) return object;
  auto object = detail::make_ref<RRefObject>(keeper_, id);
  objects_[id] = object.get();
  ledger_.begin_local(id);
  return object;
}

Ref<RRefObject> OwnedObjects::find(const RRefId& id) {
  const base::MutexLock lock(mutex_);
  if (Ref<RRefObject> object = find_existing(id)) return object;
  lose(id);
}

Ref<RRefObject> OwnedObjects::find_for_call(const RRefId& id, const WorkerInfo& caller) {
  const bool of_creator = id.creator == worker_of(*runtime_, caller.id);
  const bool may_be_awaited =
      of_creator && id.owner == self_of(*runtime_) && id.owner != id.creator;
  return may_be_awaited ? find_or_await(id) : find(id);
}

Ref<RRefObject> OwnedObjects::find_or_await(const RRefId& id) {
  const base::Time now = runtime_->clock->now();
  Ref<RRefObject> object;
  {
    const base::MutexLock lock(mutex_);
    if ((object = find_existing(id))) return object;
    check_not_stopped();
    if (!ledger_.await_local(id, now)) lose(id);
    object = object_for(id);
  }
  set_alarm_by(now + lease_);
  return object;
}

// An object whose last reference is going at this moment is gone.
Ref<RRefObject> OwnedObjects::find_existing(const RRefId& id) {
  auto found = objects_.find(id);
  if (found == objects_.end()) return {};
  if (found->second->try_add_ref()) return Ref<RRefObject>::adopt(found->second);
  objects_.erase(found);
  ledger_.end_local(id);
  return {};
}

void OwnedObjects::lose(const RRefId& id) const {
  throw Error(ErrorCode::kRRefLost,
              fmt::format("{} has no object {} (any more)", runtime_->name(), text(id)));
}

void OwnedObjects::check_not_stopped() const {
  if (stopped_) throw Error(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
}

Ref<RRefObject> OwnedObjects::begin_creation(const RRefId& id, const WorkerInfo& from,
                                             const detail::RRefType& type) {
  const Worker self = self_of(*runtime_);
  if (id.owner != self || id.creator != worker_of(*runtime_, from.id)) {
    Decoder::fail(fmt::format("{} asks {} to make the object {} of another worker", from.name,
                              runtime_->name(), text(id)));
  }
  Aftermath aftermath;
  Ref<RRefObject> object;
  {
    const base::MutexLock lock(mutex_);
    check_not_stopped();
    const bool ours = id.creator == self;
    OwnerLedger::Changes changes;
    if (ours ? to_be_made_.erase(id) > 0 : ledger_.create(id, runtime_->clock->now(), changes)) {
      object = object_for(id);
      if (!ours) held_[id] = object;
    }
    absorb(changes, aftermath);
  }
  finish(aftermath);
  set_alarm_by(runtime_->clock->now() + lease_);
  if (!object) {
    throw Error(ErrorCode::kRRefLost,
                fmt::format("the creation of {} arrived after {} had given it up, or after {} had "
                            "given up waiting for it",
                            text(id), from.name, runtime_->name()));
  }
  try {
    object->expect_type(type);
  } catch (...) {
    object->fail(std::current_exception());
    throw;
  }
  return object;
}

void OwnedObjects::on_object_gone(const RRefId& id, const RRefObject* object) {
  const base::MutexLock lock(mutex_);
  auto found = objects_.find(id);
  if (found == objects_.end() || found->second != object) return;  // never shared, or made anew
  objects_.erase(found);
  to_be_made_.erase(id);
  ledger_.end_local(id);
}

// --- holders ---------------------------------------------------------------------------------

// Steps are believed about the sender alone, and of objects that live here.
void OwnedObjects::check(const SessionMessage& message, const WorkerInfo& from) const {
  for (const Step& step : message.steps) {
    if (step.kind > Step::Kind::kAccept)
      Decoder::fail(fmt::format("a step of kind {} from {}", int{uint8_t(step.kind)}, from.name));
    if (step.kind != Step::Kind::kAccept && step.id.owner != self_of(*runtime_)) {
      Decoder::fail(fmt::format("{} tells {} of the object {} of another worker", from.name,
                                runtime_->name(), text(step.id)));
    }
  }
}

SessionReply OwnedObjects::on_message(const WorkerInfo& from, const SessionMessage& message) {
  check(message, from);
  Aftermath aftermath;
  SessionReply reply;
  {
    const base::MutexLock lock(mutex_);
    check_not_stopped();
    if (!message.steps.empty()) ++messages_;
    // Whatever is about to be registered stays until that is done.
    for (const Step& step : message.steps) aftermath.dropped.push_back(find_existing(step.id));
    OwnerLedger::Changes changes;
    reply = ledger_.apply(worker_of(*runtime_, from.id), message, runtime_->clock->now(), changes);
    absorb(changes, aftermath);
  }
  finish(aftermath);
  set_alarm();
  return reply;
}

void OwnedObjects::keep_for_receiver(const WorkerInfo& receiver,
                                     const std::vector<Ref<detail::RefCounted>>& handles) {
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    const base::Time until = runtime_->clock->now() + lease_;
    for (const auto& each : handles) {
      if (auto* handle = dynamic_cast<detail::RRefHandle*>(each.get())) {
        reply_holds_.add(worker_of(*runtime_, receiver.id), handle->id(), each, until);
      }
    }
  }
  set_alarm();
}

void OwnedObjects::absorb(OwnerLedger::Changes& changes, Aftermath& aftermath) {
  for (const RRefId& id : changes.registered) {
    if (ledger_.is_held(id)) held_.emplace(id, object_for(id));
  }
  for (const RRefId& id : changes.never_created) {
    auto found = objects_.find(id);
    if (found != objects_.end() && found->second->try_add_ref())
      aftermath.never_created.push_back(Ref<RRefObject>::adopt(found->second));
  }
  for (const RRefId& id : changes.unheld) {
    auto found = held_.find(id);
    if (found == held_.end() || ledger_.is_held(id)) continue;
    aftermath.dropped.push_back(std::move(found->second));
    held_.erase(found);
  }
  for (const auto& [receiver, id] : changes.accepted) {
    reply_holds_.end_one(receiver, id, aftermath.dropped);
  }
}

void OwnedObjects::finish(Aftermath& aftermath) {
  for (auto& object : aftermath.never_created) {
    if (!object->is_settled()) {
      object->fail(std::make_exception_ptr(Error(
          ErrorCode::kRRefLost, "the worker that was to create this object gave up or is gone")));
    }
  }
  aftermath.dropped.clear();
}

// --- time ------------------------------------------------------------------------------------

void OwnedObjects::on_time() {
  Aftermath aftermath;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    const base::Time now = runtime_->clock->now();
    OwnerLedger::Changes changes;
    ledger_.expire(now, changes);
    absorb(changes, aftermath);
    reply_holds_.expire(now, aftermath.dropped);
  }
  finish(aftermath);
  set_alarm();
}

void OwnedObjects::set_alarm() {
  const base::MutexLock lock(mutex_);
  if (stopped_) return;
  const base::Time due = std::min(ledger_.next(), reply_holds_.next());
  if (due == base::Time::max() && !alarm_) return;
  alarm().set(std::max(due, runtime_->clock->now() + std::chrono::milliseconds(1)));
}

void OwnedObjects::set_alarm_by(base::Time due) {
  {
    const base::MutexLock lock(mutex_);
    if (stopped_ || (alarm_ && alarm_->due() <= due)) return;
  }
  set_alarm();
}

rpc::Alarm& OwnedObjects::alarm() {
  if (!alarm_) {
    alarm_ = rpc::Alarm::make(runtime_->io, [weak = weak_from_this()] {
      if (auto objects = weak.lock()) objects->on_time();
    });
  }
  return *alarm_;
}

// --- the end, and what people ask ------------------------------------------------------------

void OwnedObjects::stop() {
  Aftermath aftermath;
  {
    const base::MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    if (alarm_) alarm_->remove();
    for (auto& [id, object] : held_) aftermath.dropped.push_back(std::move(object));
    held_.clear();
    reply_holds_.end_all(aftermath.dropped);
    // Calls that wait for objects keep them, and this worker, alive.
    OwnerLedger::Changes changes;
    ledger_.give_up_all_awaited(changes);
    absorb(changes, aftermath);
    for (const RRefId& id : std::exchange(to_be_made_, {})) {
      if (Ref<RRefObject> object = find_existing(id))
        aftermath.never_created.push_back(std::move(object));
    }
  }
  finish(aftermath);
}

std::vector<RRefCensus::Owned> OwnedObjects::census() {
  std::map<std::string, RRefCensus::Owned> by_type;
  std::vector<Ref<RRefObject>> seen;  // let go without the lock: one may be the last to hold it
  {
    const base::MutexLock lock(mutex_);
    for (const auto& [id, object] : objects_) {
      if (!object->try_add_ref()) continue;
      seen.push_back(Ref<RRefObject>::adopt(object));
      RRefCensus::Owned& owned = by_type[object->type_name()];
      ++owned.objects;
      for (const Worker holder : ledger_.holders(id)) {
        const int rank = rank_of(*runtime_, holder);
        const auto& members = runtime_->group.members;
        ++owned.held_by[rank < 0 ? "?" : members[static_cast<size_t>(rank)].info.name];
      }
    }
  }
  std::vector<RRefCensus::Owned> all;
  for (auto& [type, owned] : by_type) {
    owned.type = type;
    all.push_back(std::move(owned));
  }
  return all;
}

size_t OwnedObjects::objects() const {
  const base::MutexLock lock(mutex_);
  return ledger_.objects();
}

size_t OwnedObjects::holders() const {
  const base::MutexLock lock(mutex_);
  return ledger_.holdings();
}

uint64_t OwnedObjects::messages() const {
  const base::MutexLock lock(mutex_);
  return messages_;
}

}  // namespace weft::rref

// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owned_objects.h"

#include <algorithm>
#include <map>
#include <new>

#include <fmt/format.h>

#include "base/room.h"
#include "rref/id_text.h"
#include "rref/worker_names.h"
#include "weft/detail/rref_handle.h"

namespace weft::rref {

namespace {

// A worker whose alarm comes later than this was held up: it was frozen, or the machine slept.
constexpr auto kMostLate = std::chrono::milliseconds(10);
// So long such a worker reads what came meanwhile, before it believes that a holder was silent.
constexpr auto kReadsFor = std::chrono::milliseconds(100);

}  // namespace

OwnedObjects::OwnedObjects(std::shared_ptr<rpc::Runtime> runtime, std::weak_ptr<Keeper> keeper)
    : runtime_(std::move(runtime)),
      keeper_(std::move(keeper)),
      lease_(runtime_->options.rref_lease),
      ledger_(lease_) {}

// --- objects ---------------------------------------------------------------------------------

Ref<RRefObject> OwnedObjects::make(bool may_be_awaited) {
  const Worker self = self_of(*runtime_);
  Ref<RRefObject> object;  // first: if memory lacks, it is destroyed without the lock
  const base::MutexLock lock(mutex_);
  const RRefId id{self, self, 0, next_number_++};
  if (!may_be_awaited) return detail::make_ref<RRefObject>(keeper_, id);
  object = object_for(id);
  to_be_made_.insert(id);
  return object;
}

void OwnedObjects::on_creation_failed(const RRefId& id) {
  Aftermath aftermath;
  {
    const base::MutexLock lock(mutex_);
    base::make_room(aftermath.never_created, 1);
    if (to_be_made_.erase(id) == 0) return;
    if (Ref<RRefObject> object = find_existing(id))
      aftermath.never_created.push_back(std::move(object));
  }
  finish(aftermath);
}

void OwnedObjects::share(RRefObject& object) {
  const base::MutexLock lock(mutex_);
  if (!objects_.contains(object.id())) enter(object.id(), &object);
}

void OwnedObjects::enter(const RRefId& id, RRefObject* object) {
  auto at = objects_.emplace(id, object).first;
  try {
    ledger_.begin_local(id);
  } catch (...) {
    objects_.erase(at);
    throw;
  }
}

// The object with this id, made if there is none yet. The caller sees to it that the last reference
// to the object does not end with the lock held.
Ref<RRefObject> OwnedObjects::object_for(const RRefId& id) {
  if (Ref<RRefObject> object = find_existing(id)) return object;
  try {
    enter(id, nullptr);
    auto object = detail::make_ref<RRefObject>(keeper_, id);
    objects_.find(id)->second = object.get();
    return object;
  } catch (...) {
    objects_.erase(id);
    ledger_.end_local(id);
    throw;
  }
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
    set_alarm_for_lease(now);
    if (!ledger_.await_local(id, now)) lose(id);
    object = object_for(id);
  }
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
  Ref<RRefObject> object;
  try {
    Aftermath aftermath;
    {
      const base::MutexLock lock(mutex_);
      check_not_stopped();
      const base::Time now = runtime_->clock->now();
      set_alarm_for_lease(now);
      try {
        const bool ours = id.creator == self;
        if (ours ? to_be_made_.erase(id) > 0 : ledger_.create(id, now, missed_changes_)) {
          object = object_for(id);
          if (!ours) held_[id] = object;
        }
      } catch (const std::bad_alloc&) {
        look_again_soon();
        throw;
      }
      absorb(aftermath);
    }
    finish(aftermath);
    if (!object) {
      throw Error(ErrorCode::kRRefLost,
                  fmt::format("the creation of {} arrived after {} had given it up, or after {} "
                              "had given up waiting for it",
                              text(id), from.name, runtime_->name()));
    }
    object->expect_type(type);
  } catch (...) {
    if (object) object->fail(std::current_exception());
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
    const base::Time now = runtime_->clock->now();
    set_alarm_for_lease(now);
    try {
      // Objects that are about to be registered are held now: without memory for the rest, they
      // stay until the message comes once more. absorb() drops those that nobody holds then.
      base::make_room(aftermath.dropped, message.steps.size());
      for (const Step& step : message.steps) {
        aftermath.dropped.push_back(find_existing(step.id));
        if (!aftermath.dropped.back() || !registers(step) || held_.contains(step.id)) continue;
        missed_changes_.unheld.push_back(step.id);
        held_.emplace(step.id, Ref<RRefObject>::share(objects_.at(step.id)));
      }
      reply = ledger_.apply(worker_of(*runtime_, from.id), message, now, missed_changes_);
    } catch (const std::bad_alloc&) {
      look_again_soon();
      throw;
    }
    absorb(aftermath);
  }
  finish(aftermath);
  return reply;
}

void OwnedObjects::keep_for_receiver(const WorkerInfo& receiver,
                                     const std::vector<Ref<detail::RefCounted>>& handles) {
  const base::MutexLock lock(mutex_);
  if (stopped_) return;
  const base::Time now = runtime_->clock->now();
  set_alarm_for_lease(now);
  const base::Time until = base::later(now, lease_);
  for (const auto& each : handles) {
    if (auto* handle = dynamic_cast<detail::RRefHandle*>(each.get())) {
      reply_holds_.add(worker_of(*runtime_, receiver.id), handle->id(), each, until);
    }
  }
}

// Acts on the ledger's changes. Those for which memory lacks are acted on before long.
void OwnedObjects::absorb(Aftermath& aftermath) noexcept {
  try {
    absorb_changes(aftermath);
  } catch (const std::bad_alloc&) {
    look_again_soon();
  }
}

void OwnedObjects::absorb_changes(Aftermath& aftermath) {
  OwnerLedger::Changes& changes = missed_changes_;
  base::make_room(aftermath.dropped, aftermath.dropped.size() + changes.registered.size() +
                                         changes.unheld.size() + changes.accepted.size());
  base::make_room(aftermath.never_created,
                  aftermath.never_created.size() + changes.never_created.size());
  for (; !changes.registered.empty(); changes.registered.pop_back()) {
    const RRefId& id = changes.registered.back();
    if (!ledger_.is_held(id) || held_.contains(id)) continue;
    Ref<RRefObject> object = object_for(id);
    aftermath.dropped.push_back(object);  // it may not end here, with the lock held
    held_.emplace(id, std::move(object));
  }
  // The rest needs no memory.
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
  changes = {};
}

void OwnedObjects::finish(Aftermath& aftermath) {
  std::exception_ptr why;
  if (!aftermath.never_created.empty()) {
    try {
      why = std::make_exception_ptr(Error(
          ErrorCode::kRRefLost, "the worker that was to create this object gave up or is gone"));
    } catch (const std::bad_alloc&) {
      why = std::current_exception();  // rather than no outcome
    }
  }
  for (auto& object : aftermath.never_created) {
    if (!object->is_settled()) object->fail(why);
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
    if (!was_held_up(now)) expire(now, aftermath);
    set_alarm(now);  // now: it may take long to destroy a value
  }
  finish(aftermath);
}

base::Time OwnedObjects::next() const { return std::min(ledger_.next(), reply_holds_.next()); }

// The renewals of a holder may lie unread when this worker goes on after it was held up: what came
// meanwhile is read first.
bool OwnedObjects::was_held_up(base::Time now) {
  if (read_until_ && now < *read_until_) return true;
  const base::Time due = std::min(next(), rings_at_);
  if (now < due || now - due <= kMostLate) return false;
  if (read_until_ && now - *read_until_ <= kReadsFor) return false;  // that is done
  read_until_ = now + kReadsFor;
  return true;
}

void OwnedObjects::expire(base::Time now, Aftermath& aftermath) {
  try {
    ledger_.expire(now, missed_changes_);
    reply_holds_.expire(now, aftermath.dropped);
  } catch (const std::bad_alloc&) {
    // The alarm is set once more, because of what is left.
  }
  absorb(aftermath);
}

void OwnedObjects::set_alarm(base::Time now) {
  base::Time due = next();
  if (read_until_) due = std::max(due, *read_until_);
  if (!missed_changes_.empty()) due = std::min(due, now + base::kMomentWithoutMemory);
  rings_at_ = std::max(due, now + std::chrono::milliseconds(1));
  alarm().set(rings_at_);
}

void OwnedObjects::set_alarm_for_lease(base::Time now) {
  const base::Time due = base::later(now, lease_);
  alarm().set_by(due);
  rings_at_ = std::min(rings_at_, due);
}

void OwnedObjects::look_again_soon() noexcept {
  try {
    alarm().set_by(runtime_->clock->now() + base::kMomentWithoutMemory);
  } catch (const std::bad_alloc&) {
    // When the next lease ends, then.
  }
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
  Holds held;  // dropped without the lock
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    // First what needs memory.
    base::make_room(aftermath.never_created, to_be_made_.size());
    reply_holds_.end_all(aftermath.dropped);
    stopped_ = true;
    if (alarm_) alarm_->remove();
    held.swap(held_);
    // Calls that wait for objects keep them, and this worker, alive.
    ledger_.give_up_all_awaited(missed_changes_);
    absorb(aftermath);
    base::make_room(aftermath.never_created, aftermath.never_created.size() + to_be_made_.size());
    for (const RRefId& id : to_be_made_) {
      if (Ref<RRefObject> object = find_existing(id))
        aftermath.never_created.push_back(std::move(object));
    }
    to_be_made_.clear();
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

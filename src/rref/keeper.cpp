// SPDX-License-Identifier: BSD-3-Clause
#include "rref/keeper.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/demangle.h"
#include "base/log.h"
#include "rref/id_text.h"
#include "rref/leak_report.h"
#include "rref/reserved_functions.h"

namespace weft::rref {

namespace {

std::shared_ptr<rpc::AgentExtension> make_keeper(rpc::AgentCore& agent) {
  register_reserved_functions();
  return std::make_shared<Keeper>(agent);
}
const size_t extension_index = rpc::register_agent_extension(&make_keeper);

}  // namespace

Keeper::Keeper(rpc::AgentCore& agent)
    : agent_(agent.weak_from_this()),
      runtime_(agent.runtime().shared_from_this()),
      lease_(runtime_->options.rref_lease),
      ledger_(lease_),
      holdings_(runtime_->self().incarnation, lease_) {}

Keeper& Keeper::of(rpc::AgentCore& agent) {
  return static_cast<Keeper&>(agent.extension(extension_index));
}

std::shared_ptr<rpc::AgentCore> Keeper::agent() const {
  if (auto agent = agent_.lock()) return agent;
  throw Error(ErrorCode::kShuttingDown, "a remote reference was used after the agent's end");
}

Worker Keeper::worker(int rank) const {
  return runtime_->group.members.at(static_cast<size_t>(rank)).incarnation;
}

// -1: nobody in this group.
int Keeper::rank(Worker worker) const {
  for (const rpc::Member& member : runtime_->group.members) {
    if (member.incarnation == worker) return member.info.id;
  }
  return -1;
}

// --- handles ---------------------------------------------------------------------------------

Ref<RRefHandle> Keeper::make_local(const detail::RRefType& type) {
  Ref<RRefObject> object;
  {
    Lock lock(mutex_);
    const RRefId id{self(), self(), 0, next_local_++};
    object = detail::make_ref<RRefObject>(weak_from_this(), id);
  }
  object->expect_type(type);
  return detail::make_ref<RRefHandle>(weak_from_this(), runtime_->self().info, object->id(),
                                      object);
}

Ref<RRefHandle> Keeper::make_remote(int owner_rank) {
  const WorkerInfo& owner = runtime_->group.members.at(static_cast<size_t>(owner_rank)).info;
  Lock lock(mutex_);
  if (owner_rank == runtime_->self().info.id) {
    const RRefId id{self(), self(), 0, next_local_++};
    const Ref<RRefObject> object = object_for(id);
    lock.unlock();
    return detail::make_ref<RRefHandle>(weak_from_this(), owner, id, object);
  }
  const base::Time now = runtime_->clock->now();
  const RRefId id = holdings_.create(worker(owner_rank), now);
  lock.unlock();
  set_timer_by(now + lease_ / 3);
  return detail::make_ref<RRefHandle>(weak_from_this(), owner, id, Ref<RRefObject>());
}

// Under the lock: the object with this id, made if there is none yet.
Ref<RRefObject> Keeper::object_for(const RRefId& id) {
  if (Ref<RRefObject> object = find_existing(id)) return object;
  auto object = detail::make_ref<RRefObject>(weak_from_this(), id);
  objects_[id] = object.get();
  ledger_.begin_local(id);
  return object;
}

// Nobody waits for releases and acceptances: those of the next moment travel together.
void Keeper::talk_before_long() {
  if (!release_waits_.exchange(true)) set_timer();
}

// Under the lock.
void Keeper::check_not_stopped() const {
  if (stopped_) throw Error(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
}

// Under the lock.
Future<void> Keeper::confirmation(const RRefId& id) {
  Promise<void> promise;
  Future<void> future = promise.future();
  unconfirmed_[id].push_back(std::move(promise));
  return future;
}

bool Keeper::is_held(const RRefId& id) {
  Lock lock(mutex_);
  return holdings_.state(id) == Holdings::State::kHeld;
}

void Keeper::on_creation_asked(const RRefId& id, const Future<void>& creation) {
  Lock lock(mutex_);
  if (!stopped_) creations_.emplace(id, creation);
}

void Keeper::on_handle_gone(const RRefId& id, const std::optional<Future<void>>& creation) {
  if (runtime_->is_forked_copy()) return;
  if (creation) watch_creation(id, *creation);
  {
    Lock lock(mutex_);
    if (stopped_) return;
    holdings_.drop(id);
    // The call that was to make it could not even be started.
    Holdings::Changes nobody_waits;
    if (!creation && !creations_.contains(id) && holdings_.is_dropped_creation(id))
      holdings_.on_created(id, Holdings::CreationOutcome::kUnknown, nobody_waits);
  }
  talk_before_long();
}

// The outcome of a creation is wanted only now and then; until then nobody is woken for it.
void Keeper::watch_creation(const RRefId& id, const Future<void>& creation) {
  creation.on_ready([weak = weak_from_this(), id](const Future<void>& done) {
    if (auto keeper = weak.lock()) keeper->on_created(id, done);
  });
}

void Keeper::on_created(const RRefId& id, const Future<void>& creation) {
  const std::optional<Error> error = creation.error();
  // A function that threw was run: the object is there, with its error in it.
  const bool answered = !error || error->code() == ErrorCode::kRemoteError;
  Aftermath aftermath;
  {
    Lock lock(mutex_);
    if (stopped_) return;
    creations_.erase(id);
    Holdings::Changes changes;
    holdings_.on_created(
        id, answered ? Holdings::CreationOutcome::kAnswered : Holdings::CreationOutcome::kUnknown,
        changes);
    absorb(changes, aftermath);
  }
  finish(aftermath);
  if (!answered) talk_soon();
}

// --- objects ---------------------------------------------------------------------------------

Ref<RRefObject> Keeper::find(const RRefId& id) {
  Lock lock(mutex_);
  if (Ref<RRefObject> object = find_existing(id)) return object;
  lose(id);
}

Ref<RRefObject> Keeper::find_or_await(const RRefId& id) {
  const base::Time now = runtime_->clock->now();
  Ref<RRefObject> object;
  {
    Lock lock(mutex_);
    object = find_existing(id);
    if (!object) {
      if (!ledger_.await_local(id, now)) lose(id);
      object = object_for(id);
    }
  }
  set_timer_by(now + lease_);
  return object;
}

// Under the lock. An object whose last reference is going at this moment is gone.
Ref<RRefObject> Keeper::find_existing(const RRefId& id) {
  auto found = objects_.find(id);
  if (found == objects_.end()) return {};
  if (found->second->try_add_ref()) return Ref<RRefObject>::adopt(found->second);
  objects_.erase(found);
  ledger_.end_local(id);
  return {};
}

void Keeper::lose(const RRefId& id) const {
  throw Error(ErrorCode::kRRefLost,
              fmt::format("{} has no object {} (any more)", runtime_->name(), text(id)));
}

Ref<RRefObject> Keeper::begin_creation(const RRefId& id, const WorkerInfo& from,
                                       const detail::RRefType& type) {
  if (id.owner != self() || id.creator != worker(from.id)) {
    Decoder::fail(fmt::format("{} asks {} to make the object {} of another worker", from.name,
                              runtime_->name(), text(id)));
  }
  Aftermath aftermath;
  Ref<RRefObject> object;
  {
    Lock lock(mutex_);
    check_not_stopped();
    const bool ours = id.creator == self();
    OwnerLedger::Changes changes;
    if (ours || ledger_.create(id, runtime_->clock->now(), changes)) {
      object = object_for(id);
      if (!ours) held_[id] = object;
    }
    absorb(changes, aftermath);
  }
  finish(aftermath);
  set_timer_by(runtime_->clock->now() + lease_);
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

void Keeper::on_object_gone(const RRefId& id, const RRefObject* object) {
  if (runtime_->is_forked_copy()) return;
  Lock lock(mutex_);
  auto found = objects_.find(id);
  if (found == objects_.end() || found->second != object) return;  // never shared, or made anew
  objects_.erase(found);
  ledger_.end_local(id);
}

// --- what holders say ------------------------------------------------------------------------

// Steps are believed about the sender alone, and of objects that live here.
void Keeper::check(const SessionMessage& message, const WorkerInfo& from) const {
  for (const Step& step : message.steps) {
    if (step.kind > Step::Kind::kAccept)
      Decoder::fail(fmt::format("a step of kind {} from {}", int{uint8_t(step.kind)}, from.name));
    if (step.kind != Step::Kind::kAccept && step.id.owner != self()) {
      Decoder::fail(fmt::format("{} tells {} of the object {} of another worker", from.name,
                                runtime_->name(), text(step.id)));
    }
  }
}

SessionReply Keeper::on_message(const WorkerInfo& from, const SessionMessage& message) {
  check(message, from);
  Aftermath aftermath;
  SessionReply reply;
  {
    Lock lock(mutex_);
    check_not_stopped();
    if (!message.steps.empty()) ++messages_;
    // Whatever is about to be registered stays until that is done.
    for (const Step& step : message.steps) aftermath.dropped.push_back(find_existing(step.id));
    OwnerLedger::Changes changes;
    reply = ledger_.apply(worker(from.id), message, runtime_->clock->now(), changes);
    absorb(changes, aftermath);
  }
  finish(aftermath);
  set_timer();
  return reply;
}

// Under the lock.
void Keeper::absorb(OwnerLedger::Changes& changes, Aftermath& aftermath) {
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
  for (const auto& [user, id] : changes.accepted) {
    reply_holds_.end_one(user, id, aftermath.dropped);
  }
}

void Keeper::absorb(Holdings::Changes& changes, Aftermath& aftermath) {
  const auto take = [this](const RRefId& id) {
    std::vector<Promise<void>> promises;
    auto found = unconfirmed_.find(id);
    if (found == unconfirmed_.end()) return promises;
    promises = std::move(found->second);
    unconfirmed_.erase(found);
    return promises;
  };
  for (const RRefId& id : changes.held) {
    for (Promise<void>& promise : take(id)) aftermath.confirmed.push_back(std::move(promise));
  }
  for (const auto* ids : {&changes.refused, &changes.lost}) {
    for (const RRefId& id : *ids) {
      for (Promise<void>& promise : take(id)) {
        aftermath.lost.emplace_back(std::move(promise),
                                    fmt::format("the object {} is lost", text(id)));
      }
    }
  }
}

// Without the lock: values are destroyed and functions continue here.
void Keeper::finish(Aftermath& aftermath) {
  for (auto& object : aftermath.never_created) {
    if (!object->is_settled()) {
      object->fail(std::make_exception_ptr(Error(
          ErrorCode::kRRefLost, "the worker that was to create this object gave up or is gone")));
    }
  }
  aftermath.dropped.clear();
  for (Promise<void>& promise : aftermath.confirmed) promise.set_value();
  for (auto& [promise, why] : aftermath.lost) promise.set_error(Error(ErrorCode::kRRefLost, why));
}

// --- the agent's life ------------------------------------------------------------------------

void Keeper::keep_for_receiver(const WorkerInfo& receiver,
                               const std::vector<Ref<detail::RefCounted>>& objects) {
  {
    Lock lock(mutex_);
    if (stopped_) return;
    const base::Time until = runtime_->clock->now() + lease_;
    for (const auto& object : objects) {
      if (auto* handle = dynamic_cast<RRefHandle*>(object.get())) {
        reply_holds_.add(worker(receiver.id), handle->id(), object, until);
      }
    }
  }
  set_timer();
}

rpc::Idleness Keeper::idleness() {
  Lock lock(mutex_);
  return {stopped_ || !holdings_.has_unfinished(), messages_};
}

std::string Keeper::unfinished() {
  return "owners have not confirmed what this worker told them of its references";
}

void Keeper::on_stopping() {
  if (runtime_->options.rref_leak_report) report_leaks();
  Aftermath aftermath;
  {
    Lock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    if (alarm_) alarm_->remove();
    for (auto& [id, object] : held_) aftermath.dropped.push_back(std::move(object));
    held_.clear();
    reply_holds_.end_all(aftermath.dropped);
    for (auto& [id, promises] : unconfirmed_) {
      for (Promise<void>& promise : promises) {
        aftermath.lost.emplace_back(std::move(promise), runtime_->name() + " was shut down");
      }
    }
    unconfirmed_.clear();
    creations_.clear();
  }
  finish(aftermath);
}

void Keeper::report_leaks() {
  for (const std::string& leak : describe_leaks(census())) {
    base::log(LogLevel::kWarning, runtime_->name(), leak);
  }
}

void Keeper::describe(DebugInfo& info) {
  Lock lock(mutex_);
  size_t unconfirmed = 0;
  for (const auto& [id, promises] : unconfirmed_) unconfirmed += promises.size();
  info.counters["rrefs.owned"] = ledger_.objects();
  info.counters["rrefs.holders"] = ledger_.holdings();
  info.counters["rrefs.held"] = holdings_.references();
  info.counters["rrefs.unconfirmed"] = unconfirmed;
}

RRefCensus Keeper::census() {
  RRefCensus census;
  std::map<std::string, RRefCensus::Owned> by_type;
  std::vector<Ref<RRefObject>> seen;  // let go without the lock: one may be the last to hold it
  Lock lock(mutex_);
  for (const auto& [id, object] : objects_) {
    if (!object->try_add_ref()) continue;
    seen.push_back(Ref<RRefObject>::adopt(object));
    RRefCensus::Owned& owned = by_type[object->type_name()];
    ++owned.objects;
    for (const Worker holder : ledger_.holders(id)) {
      const int who = rank(holder);
      ++owned.held_by[who < 0 ? "?" : runtime_->group.members[static_cast<size_t>(who)].info.name];
    }
  }
  for (const rpc::Member& member : runtime_->group.members) {
    if (const size_t count = holdings_.references(member.incarnation))
      census.held[member.info.name] = count;
  }
  lock.unlock();
  for (auto& [type, owned] : by_type) {
    owned.type = type;
    census.owned.push_back(std::move(owned));
  }
  return census;
}

}  // namespace weft::rref

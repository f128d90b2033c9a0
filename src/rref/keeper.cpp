// SPDX-License-Identifier: BSD-3-Clause
#include "rref/keeper.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/demangle.h"
#include "base/log.h"
#include "rref/reserved_functions.h"

namespace weft::rref {

namespace {

constexpr auto kRepeatAfter = std::chrono::milliseconds(50);
// An owner that refuses connections for so long is gone.
constexpr auto kGoneAfter = std::chrono::milliseconds(400);
// Releases of so long travel together.
constexpr auto kReleaseTogether = std::chrono::milliseconds(1);
constexpr auto kProbeTimeout = std::chrono::seconds(1);

std::shared_ptr<rpc::AgentPart> make_keeper(rpc::AgentCore& agent) {
  register_reserved_functions();
  return std::make_shared<Keeper>(agent);
}
const size_t part_index = rpc::register_agent_part(&make_keeper);

// A call this worker makes for itself.
template <auto F, typename... Args>
auto call(rpc::AgentCore& agent, int rank, Timeout timeout, const Args&... args) {
  using Function = detail::RemoteFunction<F>;
  // Not on behalf of whatever runs on this thread: neither its deadline nor its end are ours.
  detail::Ambient::Scope nobody{Ref<detail::Ambient>()};
  Encoder arguments;
  Function::encode(arguments, args...);
  auto pending = detail::make_ref<detail::TypedCall<typename Function::Result>>();
  agent.start_call(*pending, Function::entry(), Destination(rank, timeout), true, arguments);
  return detail::FutureAccess::make<typename Function::Result>(std::move(pending));
}

std::string text(const RRefId& id) {
  return fmt::format("{:x}.{:x}.{}", id.owner, id.creator, id.serial);
}

}  // namespace

// Wakes the keeper at its next time.
class Keeper::Timer final : public rpc::IoClient {
 public:
  explicit Timer(std::weak_ptr<Keeper> keeper) : keeper_(std::move(keeper)) {}
  void on_event(bool, bool) override {}
  void on_time(base::Time) override {
    if (auto keeper = keeper_.lock()) {
      keeper->runtime_->io.set_due(*this, base::Time::max());
      keeper->timer_due_.store(base::Time::max().time_since_epoch().count());
      keeper->on_time();
    }
  }
  uint64_t token = 0;

 private:
  std::weak_ptr<Keeper> keeper_;
};

Keeper::Keeper(rpc::AgentCore& agent)
    : agent_(agent.weak_from_this()),
      runtime_(agent.runtime().shared_from_this()),
      lease_(runtime_->options.rref_lease),
      ledger_(lease_),
      holdings_(runtime_->self().incarnation, lease_) {}

Keeper& Keeper::of(rpc::AgentCore& agent) { return static_cast<Keeper&>(agent.part(part_index)); }

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
  const Worker self = runtime_->self().incarnation;
  Ref<RRefObject> object;
  {
    Lock lock(mutex_);
    const RRefId id{self, self, next_local_++};
    object = detail::make_ref<RRefObject>(weak_from_this(), id);
  }
  object->set_type(type);
  return detail::make_ref<RRefHandle>(weak_from_this(), runtime_->self().info, object->id(),
                                      object);
}

std::pair<Ref<RRefHandle>, detail::RRefOrder> Keeper::make_remote(int owner_rank) {
  const WorkerInfo& owner = runtime_->group.members.at(static_cast<size_t>(owner_rank)).info;
  if (owner_rank == runtime_->self().info.id) {
    Lock lock(mutex_);
    const Worker self = runtime_->self().incarnation;
    const RRefId id{self, self, next_local_++};
    const Ref<RRefObject> object = object_for(id);
    lock.unlock();
    return {detail::make_ref<RRefHandle>(weak_from_this(), owner, id, object), {id, 0}};
  }
  Lock lock(mutex_);
  const Holdings::Creation creation = holdings_.create(worker(owner_rank), runtime_->clock->now());
  lock.unlock();
  set_timer_by(runtime_->clock->now() + lease_ / 3);
  return {detail::make_ref<RRefHandle>(weak_from_this(), owner, creation.id, Ref<RRefObject>()),
          {creation.id, creation.epoch}};
}

// Under the lock: the object with this id, made if there is none yet.
Ref<RRefObject> Keeper::object_for(const RRefId& id) {
  auto found = objects_.find(id);
  if (found != objects_.end() && found->second->try_add_ref())
    return Ref<RRefObject>::adopt(found->second);
  auto object = detail::make_ref<RRefObject>(weak_from_this(), id);
  objects_[id] = object.get();
  ledger_.begin_local(id);
  return object;
}

void Keeper::encode(Encoder& out, const Ref<RRefHandle>& handle) {
  const bool early = handle->creation() && !handle->creation()->ready();
  if (handle->object()) {
    // From now on others may ask for it.
    Lock lock(mutex_);
    if (objects_.emplace(handle->id(), handle->object()).second) ledger_.begin_local(handle->id());
  } else {
    handle->check_created();
    // Whoever gets it waits for a creation that may fail: then the owner must be told.
    if (early) watch_creation(handle->id(), *handle->creation());
  }
  out.scalar<uint8_t>(early ? 2 : 1);
  Codec<RRefId>::encode(out, handle->id());
  out.keep(handle);
}

Ref<RRefHandle> Keeper::decode(Decoder& in, detail::Arrival& arrival) {
  const auto kind = in.scalar<uint8_t>();
  if (kind == 0) return {};
  if (kind > 2) Decoder::fail(fmt::format("a reference of kind {}", kind));
  const auto id = Codec<RRefId>::decode(in);
  const int owner = rank(id.owner);
  if (owner < 0) {
    throw Error(ErrorCode::kRRefLost,
                fmt::format("reference {} is to an object of a worker that is not in this group",
                            text(id)));
  }
  const WorkerInfo& info = runtime_->group.members[static_cast<size_t>(owner)].info;
  if (owner == runtime_->self().info.id) {
    Ref<RRefObject> object = find(id);
    return detail::make_ref<RRefHandle>(weak_from_this(), info, id, std::move(object));
  }
  const base::Time now = runtime_->clock->now();
  Lock lock(mutex_);
  const Holdings::State state = holdings_.arrive(id, kind == 2, now);
  // From here on the handle answers for the hold.
  const auto handle = detail::make_ref<RRefHandle>(weak_from_this(), info, id, Ref<RRefObject>());
  const bool waits = state == Holdings::State::kRegistering || state == Holdings::State::kCreating;
  if (state == Holdings::State::kLost) {
    lock.unlock();
    throw Error(ErrorCode::kRRefLost,
                fmt::format("the object {} on {} is lost", text(id), info.name));
  }
  std::optional<Future<void>> confirmed;
  if (waits) confirmed = confirmation(id);
  auto creation = creations_.find(id);
  const std::optional<Future<void>> creating =
      waits && creation != creations_.end() ? std::optional(creation->second) : std::nullopt;
  // Who sent it in a reply holds it for us until we have registered.
  const bool accept =
      arrival.kind() == detail::Arrival::Kind::kReply && (arrival.from().id != owner || !waits);
  if (accept) holdings_.accept(worker(arrival.from().id), id, now);
  lock.unlock();
  if (creating) watch_creation(id, *creating);
  if (confirmed) arrival.wait_for(std::move(*confirmed));
  if (waits || accept) talk_soon();
  return handle;
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
  if (creation) watch_creation(id, *creation);
  {
    Lock lock(mutex_);
    if (stopped_) return;
    holdings_.drop(id);
  }
  if (!release_waits_.exchange(true)) set_timer();
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
  auto found = objects_.find(id);
  if (found != objects_.end() && found->second->try_add_ref()) {
    return Ref<RRefObject>::adopt(found->second);
  }
  throw Error(ErrorCode::kRRefLost,
              fmt::format("{} has no object {} (any more)", runtime_->name(), text(id)));
}

Ref<RRefObject> Keeper::begin_creation(const detail::RRefOrder& order, const WorkerInfo& from,
                                       const detail::RRefType& type) {
  Aftermath aftermath;
  Ref<RRefObject> object;
  bool allowed = true;
  {
    Lock lock(mutex_);
    const bool ours = from.id == runtime_->self().info.id;
    if (order.id.owner != runtime_->self().incarnation || order.id.creator != worker(from.id)) {
      Decoder::fail(fmt::format("{} asks {} to make the object {} of another worker", from.name,
                                runtime_->name(), text(order.id)));
    }
    if (!ours) {
      OwnerLedger::Changes changes;
      allowed =
          ledger_.create(worker(from.id), order.epoch, order.id, runtime_->clock->now(), changes);
      absorb(changes, aftermath);
    }
    if (allowed) {
      object = object_for(order.id);
      if (!ours) held_[order.id] = object;
    }
  }
  finish(aftermath);
  set_timer_by(runtime_->clock->now() + lease_);
  if (!allowed) {
    throw Error(ErrorCode::kRRefLost,
                fmt::format("{} gave the object {} up before its creation arrived", from.name,
                            text(order.id)));
  }
  object->set_type(type);
  return object;
}

void Keeper::on_object_gone(const RRefId& id, const RRefObject* object) {
  Lock lock(mutex_);
  auto found = objects_.find(id);
  if (found == objects_.end() || found->second != object) return;  // never shared, or made anew
  objects_.erase(found);
  ledger_.end_local(id);
}

// --- conversations ---------------------------------------------------------------------------

SessionReply Keeper::on_message(const WorkerInfo& from, const SessionMessage& message) {
  const Worker user = worker(from.id);
  for (const Step& step : message.steps) {
    if (step.kind > Step::Kind::kAccept)
      Decoder::fail(fmt::format("a step of kind {}", static_cast<int>(step.kind)));
  }
  Aftermath aftermath;
  SessionReply reply;
  {
    Lock lock(mutex_);
    OwnerLedger::Changes changes;
    reply = ledger_.apply(user, message, runtime_->clock->now(), changes);
    size_t answer = 0;
    for (const Step& step : message.steps) {
      if (step.kind != Step::Kind::kRegister && step.kind != Step::Kind::kRegisterEarly) continue;
      if (answer >= reply.granted.size() || !reply.granted[answer++]) continue;
      if (ledger_.is_held(step.id)) held_.emplace(step.id, object_for(step.id));
      drop_reply_hold(user, step.id, aftermath);
    }
    absorb(changes, aftermath);
  }
  finish(aftermath);
  set_timer();
  return reply;
}

// Under the lock.
void Keeper::absorb(OwnerLedger::Changes& changes, Aftermath& aftermath) {
  for (const RRefId& id : changes.never_created) {
    auto found = held_.find(id);
    if (found != held_.end()) aftermath.never_created.push_back(found->second);
  }
  for (const RRefId& id : changes.unheld) {
    auto found = held_.find(id);
    if (found == held_.end() || ledger_.is_held(id)) continue;
    aftermath.dropped.push_back(std::move(found->second));
    held_.erase(found);
  }
  for (const auto& [user, id] : changes.accepted) drop_reply_hold(user, id, aftermath);
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

void Keeper::drop_reply_hold(Worker receiver, const RRefId& id, Aftermath& aftermath) {
  auto found = reply_holds_.find({receiver, id});
  if (found == reply_holds_.end()) return;
  aftermath.dropped.push_back(std::move(found->second.back().handle));
  found->second.pop_back();
  if (found->second.empty()) reply_holds_.erase(found);
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

void Keeper::talk_soon() {
  if (talking_soon_.exchange(true)) return;
  auto* later = new detail::Continuation;
  later->task = [weak = weak_from_this()] {
    auto keeper = weak.lock();
    if (!keeper) return;
    keeper->talking_soon_.store(false);
    keeper->talk(Holdings::Say::kEverything);
  };
  runtime_->io.post(later);
}

void Keeper::talk(Holdings::Say what) {
  std::vector<std::pair<Worker, SessionMessage>> messages;
  {
    Lock lock(mutex_);
    if (stopped_) return;
    const base::Time now = runtime_->clock->now();
    for (const Worker owner : holdings_.talkative(now, what)) {
      if (auto message = holdings_.next_message(owner, now))
        messages.emplace_back(owner, std::move(*message));
    }
    for (auto& [owner, trouble] : troubles_) {
      if (trouble.repeat_at > now) continue;
      trouble.repeat_at = base::Time::max();
      if (auto message = holdings_.repeat(owner, now))
        messages.emplace_back(owner, std::move(*message));
    }
    release_waits_.store(holdings_.has_unsaid());
  }
  for (auto& [owner, message] : messages) send(owner, std::move(message));
  set_timer();
}

void Keeper::send(Worker owner, SessionMessage message) {
  const auto agent = agent_.lock();
  if (!agent) return;
  const Future<SessionReply> answer =
      call<sys_rref_session>(*agent, rank(owner), lease_ / 3, message);
  answer.on_ready([weak = weak_from_this(), owner, epoch = message.epoch,
                   sequence = message.sequence](const Future<SessionReply>& done) {
    if (auto keeper = weak.lock()) keeper->on_answer(owner, epoch, sequence, done);
  });
}

void Keeper::on_answer(Worker owner, uint64_t epoch, uint64_t sequence,
                       const Future<SessionReply>& answer) {
  Aftermath aftermath;
  {
    Lock lock(mutex_);
    if (stopped_) return;
    if (const std::optional<Error> error = answer.error()) {
      on_silence(owner, *error, lock, aftermath);
    } else {
      troubles_.erase(owner);
      Holdings::Changes changes;
      holdings_.on_reply(owner, epoch, sequence, detail::FutureAccess::state(answer).value(),
                         runtime_->clock->now(), changes);
      absorb(changes, aftermath);
      if (!changes.lost.empty()) {
        base::log(
            LogLevel::kWarning, runtime_->name(),
            fmt::format("{} references were given up by their owner, who had not heard of this "
                        "worker for {} s",
                        changes.lost.size(), std::chrono::duration<double>(lease_).count()));
      }
    }
  }
  finish(aftermath);
  // Releases that came meanwhile may wait for more of them.
  talk(Holdings::Say::kWhatSomebodyWaitsFor);
}

// Under the lock: a message got no answer.
void Keeper::on_silence(Worker owner, const Error& error, Lock&, Aftermath& aftermath) {
  const base::Time now = runtime_->clock->now();
  Trouble& trouble = troubles_[owner];
  const bool refused = error.code() == ErrorCode::kUnavailable;
  if (!refused && error.code() != ErrorCode::kPeerLost) trouble.unreachable_since.reset();
  if (refused && !trouble.unreachable_since) trouble.unreachable_since = now;
  const bool gone = error.code() == ErrorCode::kPeerLost ||
                    error.code() == ErrorCode::kUnauthenticated ||
                    (trouble.unreachable_since && now - *trouble.unreachable_since >= kGoneAfter);
  if (!gone) {
    trouble.repeat_at = now + kRepeatAfter;
    return;
  }
  troubles_.erase(owner);
  Holdings::Changes changes;
  holdings_.on_owner_lost(owner, changes);
  absorb(changes, aftermath);
}

Future<void> Keeper::probe(int rank) { return call<sys_rref_probe>(*agent(), rank, kProbeTimeout); }

// --- time ------------------------------------------------------------------------------------

void Keeper::on_time() {
  Aftermath aftermath;
  {
    Lock lock(mutex_);
    if (stopped_) return;
    const base::Time now = runtime_->clock->now();
    OwnerLedger::Changes changes;
    ledger_.expire(now, changes);
    absorb(changes, aftermath);
    for (auto at = reply_holds_.begin(); at != reply_holds_.end();) {
      std::erase_if(at->second, [&](ReplyHold& hold) {
        if (hold.until > now) return false;
        aftermath.dropped.push_back(std::move(hold.handle));
        return true;
      });
      at = at->second.empty() ? reply_holds_.erase(at) : std::next(at);
    }
  }
  // Values are destroyed by a thread that may take its time.
  auto* later = new detail::Continuation;
  later->task = [weak = weak_from_this(), aftermath = std::move(aftermath)]() mutable {
    finish(aftermath);
    if (auto keeper = weak.lock()) keeper->talk(Holdings::Say::kEverything);
  };
  runtime_->io.post(later);
}

void Keeper::set_timer() {
  Lock lock(mutex_);
  if (stopped_) return;
  if (!timer_) {
    timer_ = std::make_shared<Timer>(weak_from_this());
    timer_->token = runtime_->io.add(timer_);
  }
  base::Time due = std::min(ledger_.next(), holdings_.next());
  if (release_waits_) due = std::min(due, runtime_->clock->now() + kReleaseTogether);
  for (const auto& [owner, trouble] : troubles_) due = std::min(due, trouble.repeat_at);
  for (const auto& [key, holds] : reply_holds_) {
    for (const ReplyHold& hold : holds) due = std::min(due, hold.until);
  }
  // A lease in the past is renewed by the message that is on its way.
  due = std::max(due, runtime_->clock->now() + std::chrono::milliseconds(1));
  timer_due_.store(due.time_since_epoch().count());
  runtime_->io.set_due(*timer_, due);
}

void Keeper::set_timer_by(base::Time due) {
  if (timer_due_.load() > due.time_since_epoch().count()) set_timer();
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
        reply_holds_[{worker(receiver.id), handle->id()}].push_back({object, until});
      }
    }
  }
  set_timer();
}

void Keeper::on_stopping() {
  Aftermath aftermath;
  {
    Lock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    if (timer_) {
      runtime_->io.set_due(*timer_, base::Time::max());
      runtime_->io.remove(timer_->token);
    }
    for (auto& [id, object] : held_) aftermath.dropped.push_back(std::move(object));
    held_.clear();
    for (auto& [key, holds] : reply_holds_) {
      for (ReplyHold& hold : holds) aftermath.dropped.push_back(std::move(hold.handle));
    }
    reply_holds_.clear();
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

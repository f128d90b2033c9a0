// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owner_sessions.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "base/log.h"
#include "rpc/own_call.h"
#include "rref/id_text.h"
#include "rref/reserved_functions.h"
#include "rref/worker_names.h"

namespace weft::rref {

namespace {

// Releases within so long travel together.
constexpr auto kReleaseTogether = std::chrono::milliseconds(1);
// Before a message is repeated that could not be sent, or that an owner who lives has refused.
constexpr auto kRepeatPause = std::chrono::milliseconds(50);

// Calls in this scope do not belong to the call that this thread serves: neither its deadline nor
// its end applies to them.
struct OnOnesOwn {
  detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
};

}  // namespace

OwnerSessions::OwnerSessions(std::shared_ptr<rpc::Runtime> runtime)
    : runtime_(std::move(runtime)),
      lease_(runtime_->options.rref_lease),
      holdings_(self_of(*runtime_), lease_) {}

// --- holds -----------------------------------------------------------------------------------

RRefId OwnerSessions::create(int owner) {
  const base::Time now = runtime_->clock->now();
  RRefId id;
  {
    const base::MutexLock lock(mutex_);
    id = holdings_.create(worker_of(*runtime_, owner), now);
  }
  set_alarm_by(now + lease_ / 3);
  return id;
}

void OwnerSessions::on_creation_asked(const RRefId& id, const Future<void>& creation) {
  const base::MutexLock lock(mutex_);
  if (!stopped_) creations_.emplace(id, creation);
}

void OwnerSessions::watch_creation(const RRefId& id, const Future<void>& creation) {
  creation.on_ready([weak = weak_from_this(), id](const Future<void>& done) {
    const auto sessions = weak.lock();
    if (!sessions) return;
    const std::optional<Error> error = done.error();
    // A function that threw was run: the object is there, with its error in it.
    const bool answered = !error || error->code() == ErrorCode::kRemoteError;
    sessions->on_created(
        id, answered ? Holdings::CreationOutcome::kAnswered : Holdings::CreationOutcome::kUnknown);
  });
}

void OwnerSessions::on_creation_failed(const RRefId& id) {
  on_created(id, Holdings::CreationOutcome::kUnknown);
}

void OwnerSessions::on_created(const RRefId& id, Holdings::CreationOutcome outcome) {
  Aftermath aftermath;
  bool has_unsaid = false;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    creations_.erase(id);
    Holdings::Changes changes;
    holdings_.on_created(id, outcome, changes);
    absorb(changes, aftermath);
    has_unsaid = holdings_.has_unsaid();
  }
  finish(aftermath);
  if (outcome == Holdings::CreationOutcome::kUnknown) {
    talk_soon();
  } else if (has_unsaid) {
    talk_before_long();  // of a release, if the reference was dropped meanwhile
  }
}

OwnerSessions::Arrival OwnerSessions::arrive(const RRefId& id, bool may_precede_creation) {
  std::optional<Future<void>> creating;
  Arrival arrival{};
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) throw Error(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
    arrival.state = holdings_.arrive(id, may_precede_creation, runtime_->clock->now());
    const bool waits = arrival.state == Holdings::State::kRegistering ||
                       arrival.state == Holdings::State::kCreating;
    if (!waits) return arrival;
    unconfirmed_[id].emplace_back();
    arrival.confirmed = unconfirmed_[id].back().future();
    if (auto found = creations_.find(id); found != creations_.end()) creating = found->second;
  }
  if (creating) watch_creation(id, *creating);
  return arrival;
}

void OwnerSessions::accept(Worker sender, const RRefId& id) {
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    holdings_.accept(sender, id, runtime_->clock->now());
  }
  talk_before_long();
}

void OwnerSessions::drop(const RRefId& id, const std::optional<Future<void>>& creation) {
  if (creation) watch_creation(id, *creation);
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    holdings_.drop(id);
    // The call that was to make it could not even be started.
    Holdings::Changes nobody_waits;
    if (!creation && !creations_.contains(id) && holdings_.is_dropped_creation(id))
      holdings_.on_created(id, Holdings::CreationOutcome::kUnknown, nobody_waits);
  }
  talk_before_long();
}

bool OwnerSessions::is_held(const RRefId& id) const {
  const base::MutexLock lock(mutex_);
  return holdings_.state(id) == Holdings::State::kHeld;
}

void OwnerSessions::absorb(Holdings::Changes& changes, Aftermath& aftermath) {
  for (const RRefId& id : changes.held) {
    for (Promise<void>& each : take_unconfirmed(id)) aftermath.confirmed.push_back(std::move(each));
  }
  for (const auto* ids : {&changes.refused, &changes.lost}) {
    for (const RRefId& id : *ids) {
      for (Promise<void>& each : take_unconfirmed(id)) {
        aftermath.lost.emplace_back(std::move(each),
                                    fmt::format("the object {} is lost", text(id)));
      }
    }
  }
}

std::vector<Promise<void>> OwnerSessions::take_unconfirmed(const RRefId& id) {
  auto found = unconfirmed_.find(id);
  if (found == unconfirmed_.end()) return {};
  std::vector<Promise<void>> promises = std::move(found->second);
  unconfirmed_.erase(found);
  return promises;
}

void OwnerSessions::finish(Aftermath& aftermath) {
  for (Promise<void>& promise : aftermath.confirmed) promise.set_value();
  for (auto& [promise, why] : aftermath.lost) promise.set_error(Error(ErrorCode::kRRefLost, why));
}

// --- conversations ---------------------------------------------------------------------------

void OwnerSessions::talk_soon() {
  if (talking_soon_.exchange(true)) return;
  runtime_->io.post_task([weak = weak_from_this()] {
    auto sessions = weak.lock();
    if (!sessions) return;
    sessions->talking_soon_.store(false);
    sessions->talk(Holdings::Say::kEverything);
  });
}

// Nobody waits for releases and acceptances: those of the next moment travel together.
void OwnerSessions::talk_before_long() {
  if (!release_waits_.exchange(true)) set_alarm();
}

void OwnerSessions::talk(Holdings::Say what) {
  std::vector<std::pair<Worker, SessionMessage>> messages;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    const base::Time now = runtime_->clock->now();
    for (const Worker owner : holdings_.owners_to_tell(now, what)) {
      if (auto message = holdings_.next_message(owner, now))
        messages.emplace_back(owner, std::move(*message));
    }
    for (const auto& [owner, message] : messages) messages_ += message.steps.empty() ? 0 : 1;
    release_waits_.store(holdings_.has_unsaid());
  }
  for (const auto& [owner, message] : messages) send(owner, message);
  set_alarm();
}

void OwnerSessions::send(Worker owner, const SessionMessage& message) {
  const auto agent = runtime_->agent.lock();
  if (!agent) return;
  const OnOnesOwn scope;
  try {
    const Future<SessionReply> answer =
        rpc::own_call<sys_rref_session>(*agent, rank_of(*runtime_, owner), lease_ / 3, message);
    answer.on_ready([weak = weak_from_this(), owner, epoch = message.epoch,
                     sequence = message.sequence](const Future<SessionReply>& done) {
      if (auto sessions = weak.lock()) sessions->on_answer(owner, epoch, sequence, done);
    });
  } catch (const std::bad_alloc&) {
    repeat_later(owner);
  }
}

void OwnerSessions::on_answer(Worker owner, uint64_t epoch, uint64_t sequence,
                              const Future<SessionReply>& answer) {
  if (const std::optional<Error> error = answer.error()) return on_silence(owner, *error);
  Aftermath aftermath;
  size_t given_up = 0;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    Holdings::Changes changes;
    holdings_.on_reply(owner, epoch, sequence, detail::FutureAccess::state(answer).value(),
                       runtime_->clock->now(), changes);
    absorb(changes, aftermath);
    given_up = changes.lost.size();
  }
  if (given_up > 0) {
    base::log(
        LogLevel::kWarning, runtime_->name(),
        "{} references were given up by their owner, who had not heard of this worker for {} s",
        given_up, std::chrono::duration<double>(lease_).count());
  }
  finish(aftermath);
  // Releases that came meanwhile may wait for more of them.
  talk(Holdings::Say::kWhatSomebodyWaitsFor);
}

// A message got no answer. It is repeated as long as its owner lives.
void OwnerSessions::on_silence(Worker owner, const Error& error) {
  if (error.code() == ErrorCode::kShuttingDown) return;
  if (error.code() == ErrorCode::kTimeout) return repeat(owner);
  if (!rpc::Liveness::leaves_open_whether_alive(error)) return repeat_later(owner);
  runtime_->liveness.when_known(rank_of(*runtime_, owner),
                                [weak = weak_from_this(), owner](const std::optional<Error>& gone) {
                                  const auto sessions = weak.lock();
                                  if (!sessions) return;
                                  if (!gone) return sessions->repeat(owner);
                                  switch (gone->code()) {
                                    case ErrorCode::kPeerLost:
                                      return sessions->on_owner_lost(owner);
                                    case ErrorCode::kShuttingDown:
                                      return;
                                    default:
                                      return sessions->repeat_later(owner);
                                  }
                                });
}

void OwnerSessions::repeat_later(Worker owner) {
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    holdings_.repeat_later(owner, runtime_->clock->now() + kRepeatPause);
  }
  set_alarm();
}

void OwnerSessions::repeat(Worker owner) {
  std::optional<SessionMessage> message;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    message = holdings_.repeat(owner, runtime_->clock->now());
  }
  if (message) send(owner, *message);
}

void OwnerSessions::on_owner_lost(Worker owner) {
  Aftermath aftermath;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    Holdings::Changes changes;
    holdings_.on_owner_lost(owner, changes);
    absorb(changes, aftermath);
  }
  finish(aftermath);
  talk(Holdings::Say::kWhatSomebodyWaitsFor);
}

void OwnerSessions::set_alarm() {
  const base::MutexLock lock(mutex_);
  if (stopped_) return;
  const base::Time now = runtime_->clock->now();
  base::Time due = holdings_.next();
  if (release_waits_) due = std::min(due, now + kReleaseTogether);
  if (due == base::Time::max() && !alarm_) return;
  // A lease in the past is renewed by the message that is on its way.
  alarm().set(std::max(due, now + std::chrono::milliseconds(1)));
}

// Sets it unless it is due by then anyway; it finds out itself what is due.
void OwnerSessions::set_alarm_by(base::Time due) {
  {
    const base::MutexLock lock(mutex_);
    if (stopped_ || (alarm_ && alarm_->due() <= due)) return;
  }
  set_alarm();
}

rpc::Alarm& OwnerSessions::alarm() {
  if (!alarm_) {
    alarm_ = rpc::Alarm::make(runtime_->io, [weak = weak_from_this()] {
      if (auto sessions = weak.lock()) sessions->talk(Holdings::Say::kEverything);
    });
  }
  return *alarm_;
}

// --- the end, and what people ask ------------------------------------------------------------

void OwnerSessions::stop() {
  Aftermath aftermath;
  ById<Future<void>> creations;
  {
    const base::MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    if (alarm_) alarm_->remove();
    for (auto& [id, promises] : unconfirmed_) {
      for (Promise<void>& promise : promises) {
        aftermath.lost.emplace_back(std::move(promise), runtime_->name() + " was shut down");
      }
    }
    unconfirmed_.clear();
    creations.swap(creations_);
  }
  finish(aftermath);
}

bool OwnerSessions::is_idle() const {
  const base::MutexLock lock(mutex_);
  return stopped_ || !holdings_.has_unfinished();
}

uint64_t OwnerSessions::messages() const {
  const base::MutexLock lock(mutex_);
  return messages_;
}

size_t OwnerSessions::references() const {
  const base::MutexLock lock(mutex_);
  return holdings_.references();
}

size_t OwnerSessions::references(Worker owner) const {
  const base::MutexLock lock(mutex_);
  return holdings_.references(owner);
}

size_t OwnerSessions::unconfirmed() const {
  const base::MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [id, promises] : unconfirmed_) count += promises.size();
  return count;
}

}  // namespace weft::rref

// SPDX-License-Identifier: BSD-3-Clause
#include "rref/owner_sessions.h"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "base/error_without_memory.h"
#include "base/log.h"
#include "base/room.h"
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
  try {
    set_alarm_by(now + lease_ / 3);
  } catch (...) {
    drop(id, std::nullopt);
    throw;
  }
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
    holdings_.on_created(id, outcome, missed_changes_);
    absorb(aftermath);
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
  bool held = false;
  try {
    std::optional<Future<void>> creating;
    Arrival arrival{};
    {
      const base::MutexLock lock(mutex_);
      if (stopped_) throw Error(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
      arrival.state = holdings_.arrive(id, may_precede_creation, runtime_->clock->now());
      held = true;
      const bool waits = arrival.state == Holdings::State::kRegistering ||
                         arrival.state == Holdings::State::kCreating;
      if (!waits) return arrival;
      Promises& promises = unconfirmed_[id];
      promises.emplace_back();
      arrival.confirmed = promises.back().future();
      if (auto found = creations_.find(id); found != creations_.end()) creating = found->second;
    }
    if (creating) watch_creation(id, *creating);
    return arrival;
  } catch (...) {
    if (held) drop(id, std::nullopt);
    throw;
  }
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

// Acts on the changes of the holdings. Without memory they wait for the next time, which comes when
// the alarm rings.
void OwnerSessions::absorb(Aftermath& aftermath) {
  Holdings::Changes& changes = missed_changes_;
  try {
    base::make_room(aftermath.confirmed, aftermath.confirmed.size() + changes.held.size());
    base::make_room(aftermath.lost,
                    aftermath.lost.size() + changes.refused.size() + changes.lost.size());
  } catch (const std::bad_alloc&) {
    alarm().set_by(runtime_->clock->now() + base::kMomentWithoutMemory);
    throw;
  }
  for (const RRefId& id : changes.held) aftermath.confirmed.push_back(take_unconfirmed(id));
  for (const auto* ids : {&changes.refused, &changes.lost}) {
    for (const RRefId& id : *ids) aftermath.lost.emplace_back(id, take_unconfirmed(id));
  }
  changes = {};
}

OwnerSessions::Promises OwnerSessions::take_unconfirmed(const RRefId& id) {
  auto found = unconfirmed_.find(id);
  if (found == unconfirmed_.end()) return {};
  Promises promises = std::move(found->second);
  unconfirmed_.erase(found);
  return promises;
}

void OwnerSessions::finish(Aftermath& aftermath) {
  for (Promises& promises : aftermath.confirmed) {
    for (Promise<void>& promise : promises) promise.set_value();
  }
  for (auto& [id, promises] : aftermath.lost) {
    if (promises.empty()) continue;
    const Error lost = base::error_by(ErrorCode::kRRefLost, [&id = id] {
      return Error(ErrorCode::kRRefLost, fmt::format("the object {} is lost", text(id)));
    });
    for (Promise<void>& promise : promises) promise.set_error(lost);
  }
}

// --- conversations ---------------------------------------------------------------------------

void OwnerSessions::talk_soon() {
  if (talking_soon_.exchange(true)) return;
  try {
    runtime_->io.post_task([weak = weak_from_this()] {
      auto sessions = weak.lock();
      if (!sessions) return;
      sessions->talking_soon_.store(false);
      sessions->talk(Holdings::Say::kEverything);
    });
  } catch (const std::bad_alloc&) {
    talking_soon_.store(false);
    talk_before_long();
  }
}

// Nobody waits for releases and acceptances: those of the next moment travel together.
void OwnerSessions::talk_before_long() {
  if (!release_waits_.exchange(true)) try_set_alarm();
}

void OwnerSessions::talk(Holdings::Say what) {
  Aftermath aftermath;
  std::vector<Worker> owners;
  bool goes_on_soon = false;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    try {
      absorb(aftermath);  // what was missed before
      owners = holdings_.owners_to_tell(runtime_->clock->now(), what);
    } catch (const std::bad_alloc&) {
      goes_on_soon = true;
    }
  }
  for (const Worker owner : owners) say_next(owner);
  {
    const base::MutexLock lock(mutex_);
    release_waits_.store(goes_on_soon || holdings_.has_unsaid());
  }
  try_set_alarm();
  finish(aftermath);
}

// One owner at a time: a failure with one does not keep the others from being told.
void OwnerSessions::say_next(Worker owner) {
  try {
    std::optional<SessionMessage> message;
    {
      const base::MutexLock lock(mutex_);
      if (stopped_) return;
      message = holdings_.next_message(owner, runtime_->clock->now());
      if (message && !message->steps.empty()) ++messages_;
    }
    if (message) send(owner, *message);
  } catch (const std::exception&) {
    repeat_later(owner);
  }
}

void OwnerSessions::send(Worker owner, const SessionMessage& message) {
  const auto agent = runtime_->agent.lock();
  if (!agent) return;
  const OnOnesOwn scope;
  const Future<SessionReply> answer =
      rpc::own_call<sys_rref_session>(*agent, rank_of(*runtime_, owner), lease_ / 3, message);
  answer.on_ready([weak = weak_from_this(), owner, epoch = message.epoch,
                   sequence = message.sequence](const Future<SessionReply>& done) {
    if (auto sessions = weak.lock()) sessions->on_answer(owner, epoch, sequence, done);
  });
}

void OwnerSessions::on_answer(Worker owner, uint64_t epoch, uint64_t sequence,
                              const Future<SessionReply>& answer) {
  if (const std::optional<Error> error = answer.error()) return on_silence(owner, *error);
  Aftermath aftermath;
  size_t given_up = 0;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    holdings_.on_reply(owner, epoch, sequence, detail::FutureAccess::state(answer).value(),
                       runtime_->clock->now(), missed_changes_);
    given_up = missed_changes_.lost.size();
    absorb(aftermath);
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

// A message got no answer. It is repeated as long as its owner lives, unless the owner cannot read
// it: then the owner is as good as gone.
void OwnerSessions::on_silence(Worker owner, const Error& error) {
  switch (error.code()) {
    case ErrorCode::kShuttingDown:
      return;
    case ErrorCode::kTimeout:
      return repeat(owner);
    case ErrorCode::kUnknownFunction:
    case ErrorCode::kSignatureMismatch:
    case ErrorCode::kBadMessage:
      base::log(
          LogLevel::kError, runtime_->name(),
          "{} refused a message about references; all that this worker has to its objects are "
          "lost: {}",
          runtime_->group.members.at(static_cast<size_t>(rank_of(*runtime_, owner))).info.name,
          error.message());
      return on_owner_lost(owner);
    default:
      break;
  }
  if (!rpc::Liveness::leaves_open_whether_alive(error)) return repeat_later(owner);
  runtime_->liveness.when_known(rank_of(*runtime_, owner),
                                [weak = weak_from_this(), owner](const std::optional<Error>& gone) {
                                  const auto sessions = weak.lock();
                                  if (!sessions) return;
                                  if (!gone) return sessions->repeat_again(owner);
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

// At once the first time, then with pauses: it may be this message that breaks the connection.
void OwnerSessions::repeat_again(Worker owner) {
  bool was_repeated;
  {
    const base::MutexLock lock(mutex_);
    was_repeated = holdings_.was_repeated(owner);
  }
  if (was_repeated) return repeat_later(owner);
  repeat(owner);
}

void OwnerSessions::repeat_later(Worker owner) noexcept {
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    holdings_.repeat_later(owner, runtime_->clock->now() + kRepeatPause);
  }
  try_set_alarm();
}

void OwnerSessions::repeat(Worker owner) {
  try {
    std::optional<SessionMessage> message;
    {
      const base::MutexLock lock(mutex_);
      if (stopped_) return;
      message = holdings_.repeat(owner, runtime_->clock->now());
    }
    if (message) send(owner, *message);
  } catch (const std::exception&) {
    repeat_later(owner);
  }
}

void OwnerSessions::on_owner_lost(Worker owner) {
  Aftermath aftermath;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    holdings_.on_owner_lost(owner, missed_changes_);
    absorb(aftermath);
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
  if (!missed_changes_.empty()) due = std::min(due, now + base::kMomentWithoutMemory);
  if (due == base::Time::max() && !alarm_) return;
  // A lease in the past is renewed by the message that is on its way.
  alarm().set(std::max(due, now + std::chrono::milliseconds(1)));
}

// Without memory, the next worker that is to be told something has it set.
void OwnerSessions::try_set_alarm() noexcept {
  try {
    set_alarm();
  } catch (const std::bad_alloc&) {
    release_waits_.store(false);
  }
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
  const Error lost(ErrorCode::kRRefLost, runtime_->name() + " was shut down");
  ById<Promises> unconfirmed;
  ById<Future<void>> creations;
  {
    const base::MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    if (alarm_) alarm_->remove();
    unconfirmed.swap(unconfirmed_);
    creations.swap(creations_);
  }
  for (auto& [id, promises] : unconfirmed) {
    for (Promise<void>& promise : promises) promise.set_error(lost);
  }
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

// The keeper's conversations with the owners of what it holds, and the time they take.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>

#include "base/log.h"
#include "rpc/own_call.h"
#include "rref/keeper.h"
#include "rref/reserved_functions.h"

namespace weft::rref {

namespace {

// Releases of so long travel together.
constexpr auto kReleaseTogether = std::chrono::milliseconds(1);

// Not on behalf of whatever runs on this thread: neither its deadline nor its end are ours.
struct OnOnesOwn {
  detail::Ambient::Scope nobody{Ref<detail::Ambient>()};
};

}  // namespace

void Keeper::talk_soon() {
  if (talking_soon_.exchange(true)) return;
  runtime_->io.post_task([weak = weak_from_this()] {
    auto keeper = weak.lock();
    if (!keeper) return;
    keeper->talking_soon_.store(false);
    keeper->talk(Holdings::Say::kEverything);
  });
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
    for (const auto& [owner, message] : messages) messages_ += message.steps.empty() ? 0 : 1;
    release_waits_.store(holdings_.has_unsaid());
  }
  for (auto& [owner, message] : messages) send(owner, std::move(message));
  set_timer();
}

void Keeper::send(Worker owner, SessionMessage message) {
  const auto agent = agent_.lock();
  if (!agent) return;
  const OnOnesOwn scope;
  const Future<SessionReply> answer =
      rpc::own_call<sys_rref_session>(*agent, rank(owner), lease_ / 3, message);
  answer.on_ready([weak = weak_from_this(), owner, epoch = message.epoch,
                   sequence = message.sequence](const Future<SessionReply>& done) {
    if (auto keeper = weak.lock()) keeper->on_answer(owner, epoch, sequence, done);
  });
}

void Keeper::on_answer(Worker owner, uint64_t epoch, uint64_t sequence,
                       const Future<SessionReply>& answer) {
  if (const std::optional<Error> error = answer.error()) return on_silence(owner, *error);
  Aftermath aftermath;
  size_t given_up = 0;
  {
    Lock lock(mutex_);
    if (stopped_) return;
    Holdings::Changes changes;
    holdings_.on_reply(owner, epoch, sequence, detail::FutureAccess::state(answer).value(),
                       runtime_->clock->now(), changes);
    absorb(changes, aftermath);
    given_up = changes.lost.size();
  }
  if (given_up > 0) {
    base::log(LogLevel::kWarning, runtime_->name(),
              fmt::format("{} references were given up by their owner, who had not heard of this "
                          "worker for {} s",
                          given_up, std::chrono::duration<double>(lease_).count()));
  }
  finish(aftermath);
  // Releases that came meanwhile may wait for more of them.
  talk(Holdings::Say::kWhatSomebodyWaitsFor);
}

// A message got no answer. It is repeated as long as its owner lives.
void Keeper::on_silence(Worker owner, const Error& error) {
  if (error.code() == ErrorCode::kShuttingDown) return;
  if (!rpc::Liveness::is_questioned_by(error)) return repeat(owner);
  runtime_->liveness.when_known(rank(owner),
                                [weak = weak_from_this(), owner](const std::optional<Error>& gone) {
                                  const auto keeper = weak.lock();
                                  if (!keeper) return;
                                  if (!gone) return keeper->repeat(owner);
                                  if (gone->code() == ErrorCode::kPeerLost)
                                    keeper->on_owner_lost(owner);
                                });
}

void Keeper::repeat(Worker owner) {
  std::optional<SessionMessage> message;
  {
    Lock lock(mutex_);
    if (stopped_) return;
    message = holdings_.repeat(owner, runtime_->clock->now());
  }
  if (message) send(owner, std::move(*message));
}

void Keeper::on_owner_lost(Worker owner) {
  Aftermath aftermath;
  {
    Lock lock(mutex_);
    if (stopped_) return;
    Holdings::Changes changes;
    holdings_.on_owner_lost(owner, changes);
    absorb(changes, aftermath);
  }
  finish(aftermath);
  talk(Holdings::Say::kWhatSomebodyWaitsFor);
}

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
    reply_holds_.expire(now, aftermath.dropped);
  }
  finish(aftermath);
  talk(Holdings::Say::kEverything);
}

void Keeper::set_timer() {
  Lock lock(mutex_);
  if (stopped_) return;
  base::Time due = std::min({ledger_.next(), holdings_.next(), reply_holds_.next()});
  if (release_waits_) due = std::min(due, runtime_->clock->now() + kReleaseTogether);
  // A lease in the past is renewed by the message that is on its way.
  due = std::max(due, runtime_->clock->now() + std::chrono::milliseconds(1));
  alarm().set(due);
}

// Under the lock.
rpc::Alarm& Keeper::alarm() {
  if (!alarm_) {
    alarm_ = rpc::Alarm::make(runtime_->io, [weak = weak_from_this()] {
      if (auto keeper = weak.lock()) keeper->on_time();
    });
  }
  return *alarm_;
}

void Keeper::set_timer_by(base::Time due) {
  {
    Lock lock(mutex_);
    if (stopped_ || (alarm_ && alarm_->due() <= due)) return;
  }
  set_timer();
}

}  // namespace weft::rref

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

constexpr auto kRepeatAfter = std::chrono::milliseconds(50);
// An owner that refuses connections for so long is gone.
constexpr auto kGoneAfter = std::chrono::milliseconds(400);
// Releases of so long travel together.
constexpr auto kReleaseTogether = std::chrono::milliseconds(1);
constexpr auto kProbeTimeout = std::chrono::seconds(1);

// Not on behalf of whatever runs on this thread: neither its deadline nor its end are ours.
struct OnOnesOwn {
  detail::Ambient::Scope nobody{Ref<detail::Ambient>()};
};

}  // namespace

// Wakes the keeper at its next time.
class Keeper::Timer final : public rpc::IoClient {
 public:
  explicit Timer(std::weak_ptr<Keeper> keeper) : keeper_(std::move(keeper)) {}
  void on_event(bool, bool) override {}
  void on_time(base::Time) override {
    if (auto keeper = keeper_.lock()) {
      keeper->timer_due_.store(base::Time::max().time_since_epoch().count());
      keeper->on_time();
    }
  }
  uint64_t token = 0;

 private:
  std::weak_ptr<Keeper> keeper_;
};

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
  Aftermath aftermath;
  size_t given_up = 0;
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
      given_up = changes.lost.size();
    }
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

// Under the lock: a message got no answer.
void Keeper::on_silence(Worker owner, const Error& error, Lock&, Aftermath& aftermath) {
  const base::Time now = runtime_->clock->now();
  Trouble& trouble = troubles_[owner];
  const bool refused = error.code() == ErrorCode::kUnavailable;
  // A connection that broke was one. A message that took too long says nothing.
  if (error.code() == ErrorCode::kOutcomeUnknown) trouble.unreachable_since.reset();
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

// Many calls may fail at one moment: one probe answers for all.
Future<void> Keeper::probe(int rank) {
  {
    Lock lock(mutex_);
    auto last = probes_.find(rank);
    if (last != probes_.end() && !last->second.ready()) return last->second;
  }
  const OnOnesOwn scope;
  Future<void> probe = rpc::own_call<sys_rref_probe>(*agent(), rank, kProbeTimeout);
  Lock lock(mutex_);
  probes_.insert_or_assign(rank, probe);
  return probe;
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
  base::Time due = std::min({ledger_.next(), holdings_.next(), reply_holds_.next()});
  if (release_waits_) due = std::min(due, runtime_->clock->now() + kReleaseTogether);
  for (const auto& [owner, trouble] : troubles_) due = std::min(due, trouble.repeat_at);
  // A lease in the past is renewed by the message that is on its way.
  due = std::max(due, runtime_->clock->now() + std::chrono::milliseconds(1));
  timer_due_.store(due.time_since_epoch().count());
  runtime_->io.set_due(*timer_, due);
}

// Under the lock.
void Keeper::stop_timer() {
  if (!timer_) return;
  runtime_->io.set_due(*timer_, base::Time::max());
  runtime_->io.remove(timer_->token);
}

void Keeper::set_timer_by(base::Time due) {
  if (timer_due_.load() > due.time_since_epoch().count()) set_timer();
}

}  // namespace weft::rref

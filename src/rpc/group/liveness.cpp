// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/liveness.h"

#include <utility>

#include <fmt/format.h>

#include "rpc/own_call.h"
#include "rpc/reserved_functions.h"
#include "rpc/runtime.h"

namespace weft::rpc {

namespace {
constexpr auto kProbeInterval = std::chrono::milliseconds(50);

std::vector<Liveness::Then> take(std::map<int, std::vector<Liveness::Then>>& asking, int rank) {
  auto taken = asking.extract(rank);
  return taken ? std::move(taken.mapped()) : std::vector<Liveness::Then>();
}
}  // namespace

Liveness::Liveness(Runtime& runtime)
    : runtime_(runtime), table_(runtime.group.members.size(), runtime.options.dead_after) {}

void Liveness::on_sign(int rank, SignOfLife sign, base::Time began, const std::string& why) {
  std::vector<OnGone> to_tell;
  std::vector<Then> asking;
  std::optional<Error> gone;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    const auto change = table_.on_sign(rank, sign, began, runtime_.clock->now(), why);
    if (change == LivenessTable::Change::kGone) {
      gone = gone_error(rank, *table_.why_gone(rank));
      to_tell = subscribers_;
    }
    // The hello is an answer, whatever becomes of the probe: a member whose connections break over
    // every call lives.
    if (sign == SignOfLife::kHeard) asking = take(asking_, rank);
  }
  for (OnGone& each : to_tell) {
    runtime_.io.post_task([each = std::move(each), rank, gone = *gone] { each(rank, gone); });
  }
  for (Then& each : asking) {
    runtime_.io.post_task([each = std::move(each)] { each(std::nullopt); });
  }
}

Error Liveness::gone_error(int rank, const std::string& why) const {
  return Error(ErrorCode::kPeerLost,
               fmt::format("{} is gone: {}",
                           runtime_.group.members[static_cast<size_t>(rank)].info.name, why));
}

size_t Liveness::connections_to(int rank) const {
  const base::MutexLock lock(mutex_);
  return table_.connections_to(rank);
}

std::optional<Error> Liveness::why_gone(int rank) const {
  const base::MutexLock lock(mutex_);
  if (const auto& why = table_.why_gone(rank)) return gone_error(rank, *why);
  return std::nullopt;
}

bool Liveness::leaves_open_whether_alive(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kOutcomeUnknown:
    case ErrorCode::kPeerLost:
    case ErrorCode::kUnauthenticated:
      return true;
    default:
      return false;
  }
}

void Liveness::subscribe(OnGone on_gone) {
  const base::MutexLock lock(mutex_);
  subscribers_.push_back(std::move(on_gone));
}

void Liveness::when_known(int rank, Then then) {
  std::optional<Error> known;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) {
      known = Error(ErrorCode::kShuttingDown, runtime_.name() + " was shut down");
    } else if (const auto& why = table_.why_gone(rank)) {
      known = gone_error(rank, *why);
    } else {
      std::vector<Then>& asking = asking_[rank];
      asking.push_back(std::move(then));
      if (asking.size() > 1) return;
    }
  }
  if (known) {
    runtime_.io.post_task([then = std::move(then), known] { then(known); });
  } else {
    probe(rank);
  }
}

// No timeout: a member that is connected and does not answer is judged by its heartbeat.
void Liveness::probe(int rank) {
  const auto agent = runtime_.agent.lock();
  if (!agent) return;
  const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
  try {
    own_call<sys_probe>(*agent, rank, Timeout(0))
        .on_ready([weak = runtime_.weak_from_this(), rank](const Future<void>& answer) {
          if (const auto runtime = weak.lock()) runtime->liveness.on_probed(rank, answer);
        });
  } catch (const Error& error) {
    answer(rank, error);
  }
}

void Liveness::on_probed(int rank, const Future<void>& probed) {
  const std::optional<Error> error = probed.error();
  std::shared_ptr<Alarm> alarm;
  std::optional<Error> gone;
  if (error && leaves_open_whether_alive(*error)) {
    const base::MutexLock lock(mutex_);
    if (stopped_ || !asking_.contains(rank)) return;
    if (const auto& why = table_.why_gone(rank)) {
      gone = gone_error(rank, *why);
    } else {
      to_probe_again_.insert(rank);
      if (!alarm_) {
        alarm_ = Alarm::make(runtime_.io, [weak = runtime_.weak_from_this()] {
          if (const auto runtime = weak.lock()) runtime->liveness.probe_again();
        });
      }
      alarm = alarm_;
    }
  } else if (error && error->code() == ErrorCode::kShuttingDown) {
    gone = error;
  }
  if (alarm) return alarm->set(runtime_.clock->now() + kProbeInterval);
  answer(rank, gone);
}

void Liveness::probe_again() {
  std::set<int> ranks;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    ranks.swap(to_probe_again_);
  }
  for (const int rank : ranks) probe(rank);
}

void Liveness::answer(int rank, const std::optional<Error>& gone) {
  std::vector<Then> asking;
  {
    const base::MutexLock lock(mutex_);
    asking = take(asking_, rank);
  }
  for (Then& then : asking) then(gone);
}

void Liveness::stop() {
  std::map<int, std::vector<Then>> asking;
  std::shared_ptr<Alarm> alarm;
  {
    const base::MutexLock lock(mutex_);
    stopped_ = true;
    asking.swap(asking_);
    alarm = std::move(alarm_);
    subscribers_.clear();
  }
  if (alarm) alarm->remove();
  const Error why(ErrorCode::kShuttingDown, runtime_.name() + " was shut down");
  for (auto& [rank, waiting] : asking) {
    for (Then& then : waiting) then(why);
  }
}

}  // namespace weft::rpc

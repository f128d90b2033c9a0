// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/liveness.h"

#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
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

// Of several, one that lacks memory does not keep the others from being called.
template <typename F>
void survive(const F& call) {
  try {
    call();
  } catch (const std::bad_alloc& error) {
    base::log(LogLevel::kError, "liveness", "a layer was not told of a member: {}", error.what());
  }
}
}  // namespace

Liveness::Liveness(Runtime& runtime)
    : runtime_(runtime), table_(runtime.group.members.size(), runtime.options.dead_after) {}

// Calls what it has been filled with on a thread that may block. Made before it is known whether it
// will be needed: a verdict is reached once, and must not get lost because there is no memory then.
template <typename T>
class Liveness::Messenger {
 public:
  explicit Messenger(T call) : call_(std::make_shared<T>(std::move(call))) {
    continuation_->task = [call = call_] { (*call)(); };
  }
  T& call() { return *call_; }
  void send(IoLoop& io) { io.post(continuation_.release()); }

 private:
  const std::shared_ptr<T> call_;
  std::unique_ptr<detail::Continuation> continuation_ = std::make_unique<detail::Continuation>();
};

struct Liveness::TellSubscribers {
  std::vector<OnGone> subscribers;
  int rank;
  Error gone;

  void operator()() const {
    for (const OnGone& each : subscribers) survive([&] { each(rank, gone); });
  }
};

struct Liveness::TellAsking {
  std::vector<Then> asking;

  void operator()() const {
    for (const Then& each : asking) survive([&] { each(std::nullopt); });
  }
};

void Liveness::on_sign(int rank, SignOfLife sign, base::Time began, const std::string& why) {
  Messenger asking(TellAsking{});
  Messenger subscribers(TellSubscribers{{}, rank, gone_error(rank, why)});
  bool is_gone = false;
  {
    const base::MutexLock lock(mutex_);
    if (stopped_) return;
    subscribers.call().subscribers = subscribers_;
    const auto change = table_.on_sign(rank, sign, began, runtime_.clock->now(), why);
    is_gone = change == LivenessTable::Change::kGone;
    if (is_gone) {
      const std::string& why_gone = *table_.why_gone(rank);
      survive([&] { subscribers.call().gone = gone_error(rank, why_gone); });
    }
    // The hello is an answer, whatever becomes of the probe: a member whose connections break over
    // every call lives.
    if (sign == SignOfLife::kHeard) asking.call().asking = take(asking_, rank);
  }
  if (is_gone) subscribers.send(runtime_.io);
  if (!asking.call().asking.empty()) asking.send(runtime_.io);
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
          const auto runtime = weak.lock();
          if (!runtime) return;
          try {
            runtime->liveness.on_probed(rank, answer);
          } catch (const std::bad_alloc&) {
            runtime->liveness.answer(rank, runtime->liveness.no_memory_);
          }
        });
  } catch (const Error& error) {
    answer(rank, error);
  } catch (const std::bad_alloc&) {
    answer(rank, no_memory_);
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
  for (Then& then : asking) survive([&] { then(gone); });
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

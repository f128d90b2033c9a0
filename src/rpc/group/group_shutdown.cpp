// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/group_shutdown.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.h"
#include "rpc/agent_core.h"
#include "rpc/own_call.h"
#include "rpc/reserved_functions.h"

namespace weft::rpc {

namespace {

constexpr auto kAskInterval = std::chrono::seconds(1);
// A report is limited so that a change of coordinator is noticed, and a hint can be given.
constexpr auto kReportTimeout = std::chrono::seconds(5);
constexpr auto kShortestPause = std::chrono::microseconds(100);
constexpr auto kLongestPause = std::chrono::milliseconds(10);

}  // namespace

GroupShutdown::GroupShutdown(AgentCore& agent)
    : agent_(agent), termination_(static_cast<int>(agent.runtime().group.members.size())) {}

// --- as a member -----------------------------------------------------------------------------

Termination::Verdict GroupShutdown::wait() {
  const base::Clock& clock = *agent_.runtime().clock;
  hint_.begin(clock.now());
  std::chrono::microseconds pause = kShortestPause;
  Termination::Verdict verdict;
  while (!stopping()) {
    hint_if_due();
    const Idleness now = agent_.idleness();
    if (!now.idle) {
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
      continue;
    }
    pause = kShortestPause;
    if (report(now.activity, verdict)) return verdict;
  }
  const base::MutexLock lock(mutex_);
  return {true, {termination_.dead().begin(), termination_.dead().end()}};
}

// True: the group has finished. Errors are looked at, not thrown: this thread holds the agent's
// lock, and must come out of here even where the process exits (base/process_exit.h).
bool GroupShutdown::report(uint64_t activity, Termination::Verdict& verdict) {
  const int rank = coordinator();
  const auto answer = own_call<sys_report>(agent_, rank, kReportTimeout, true, activity);
  wait_patiently(answer);
  const std::optional<Error> error = answer.error();
  if (!error) {
    verdict = answer.wait();
    return verdict.finished;
  }
  if (error->code() == ErrorCode::kShuttingDown) {
    stop();
  } else if (error->code() == ErrorCode::kUnavailable || error->code() == ErrorCode::kPeerLost) {
    // The failed attempt was a sign of life or death; Liveness knows by now whether the coordinator
    // is gone.
    if (const auto gone = agent_.runtime().liveness.why_gone(rank)) on_gone(rank, *gone);
    std::this_thread::sleep_for(kLongestPause);
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // late, or the connection broke
  }
  return false;
}

int GroupShutdown::coordinator() const {
  const base::MutexLock lock(mutex_);
  const int members = static_cast<int>(agent_.members().size());
  for (int rank = 0; rank < members; ++rank) {
    if (!termination_.dead().contains(rank)) return rank;
  }
  return agent_.runtime().self().info.id;
}

void GroupShutdown::stop() {
  stopping_.store(true, std::memory_order_release);
  std::shared_ptr<Alarm> alarm;
  const base::MutexLock lock(mutex_);
  alarm = std::move(alarm_);
  if (alarm) alarm->remove();
}

// Reports that wait here hold on to calls, and those to the agent.
void GroupShutdown::clear() {
  const base::MutexLock lock(mutex_);
  const std::set<int> dead = termination_.dead();
  termination_ = Termination(static_cast<int>(agent_.members().size()));
  for (const int rank : dead) termination_.on_dead(rank);
}

// --- hints -----------------------------------------------------------------------------------

void GroupShutdown::hint_if_due() {
  const base::Time now = agent_.runtime().clock->now();
  if (!hint_.is_due(now)) return;
  base::log(LogLevel::kWarning, agent_.runtime().name(), "shutdown() has waited {} s: {}",
            hint_.waited(now) / std::chrono::seconds(1), what_it_waits_for());
}

std::string GroupShutdown::what_it_waits_for() {
  const std::vector<std::string> own = agent_.unfinished();
  if (!own.empty()) return fmt::format("{}", fmt::join(own, "; "));
  const int rank = coordinator();
  std::vector<std::string> missing;
  if (rank == agent_.runtime().self().info.id) {
    missing = awaited();
  } else {
    const auto answer = own_call<sys_awaited>(agent_, rank, std::chrono::seconds(1));
    wait_patiently(answer);
    if (const auto error = answer.error()) {
      return fmt::format("for {}, which coordinates the end of the group and does not answer: {}",
                         agent_.members()[static_cast<size_t>(rank)].name, error->message());
    }
    missing = answer.wait();
  }
  std::erase(missing, agent_.runtime().name());
  if (missing.empty()) return "for the group to agree that nobody has work left";
  return fmt::format("for {}, which did not call shutdown() yet or has work left",
                     fmt::join(missing, ", "));
}

// --- as the member that coordinates ----------------------------------------------------------

// Answers are replies to members: they are written without the lock.
template <typename F>
void GroupShutdown::with_termination(const F& change) {
  std::vector<std::function<void()>> answers;
  {
    const base::MutexLock lock(mutex_);
    change();
    answers.swap(answers_);
  }
  for (const auto& answer : answers) answer();
}

Future<Termination::Verdict> GroupShutdown::on_report(int rank, bool idle, uint64_t activity) {
  auto promise = std::make_shared<Promise<Termination::Verdict>>();
  Future<Termination::Verdict> future = promise->future();
  with_termination([&]() WEFT_REQUIRES(mutex_) {
    termination_.on_report(rank, idle, activity,
                           [this, promise](const Termination::Verdict& all) WEFT_REQUIRES(mutex_) {
                             answers_.push_back([promise, all] { promise->set_value(all); });
                           });
    if (alarm_ || stopping()) return;
    alarm_ = Alarm::make(agent_.runtime().io, [this, weak = agent_.weak_from_this()] {
      if (const auto alive = weak.lock()) ask_missing();
    });
    alarm_->set(agent_.runtime().clock->now());
  });
  return future;
}

std::vector<std::string> GroupShutdown::awaited() const {
  std::vector<std::string> names;
  const base::MutexLock lock(mutex_);
  for (const int rank : termination_.missing()) {
    names.push_back(agent_.members()[static_cast<size_t>(rank)].name);
  }
  return names;
}

// Asks members that have not reported whether they live, again and again until they report or are
// gone.
void GroupShutdown::ask_missing() {
  std::vector<int> missing;
  {
    const base::MutexLock lock(mutex_);
    if (!alarm_) return;
    missing = termination_.missing();
    alarm_->set(agent_.runtime().clock->now() + kAskInterval);
  }
  const detail::Ambient::Scope nobody{detail::Ref<detail::Ambient>()};
  for (const int rank : missing) {
    if (rank == agent_.runtime().self().info.id) continue;
    try {
      own_call<sys_alive>(agent_, rank, 10 * kAskInterval)
          .on_ready([this, weak = agent_.weak_from_this(), rank](const Future<void>& answer) {
            if (const auto alive = weak.lock()) on_asked(rank, answer);
          });
    } catch (const Error&) {
      return;  // this worker ends
    } catch (const std::bad_alloc&) {
      return;  // asked again when the alarm rings
    }
  }
}

void GroupShutdown::on_asked(int rank, const Future<void>& answer) {
  const auto error = answer.error();
  if (!error || !Liveness::leaves_open_whether_alive(*error)) return;
  if (const auto gone = agent_.runtime().liveness.why_gone(rank)) on_gone(rank, *gone);
}

void GroupShutdown::on_gone(int rank, const Error& why) {
  base::log(LogLevel::kInfo, agent_.runtime().name(), "{}", why.message());
  with_termination([&]() WEFT_REQUIRES(mutex_) { termination_.on_dead(rank); });
}

void GroupShutdown::on_coordinator(int coordinator) {
  const base::MutexLock lock(mutex_);
  termination_.on_alive(coordinator);
}

}  // namespace weft::rpc

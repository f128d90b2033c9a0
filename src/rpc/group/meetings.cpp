// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/group/meetings.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rpc/agent_core.h"
#include "rpc/resend.h"
#include "rpc/reserved_functions.h"

namespace weft::rpc {

namespace {

// How often the member that leads looks after its meetings, and how long one waits before the
// members that have not come are asked whether they live.
constexpr auto kSweepInterval = std::chrono::milliseconds(250);
constexpr auto kUsualWait = std::chrono::milliseconds(500);
// How long the values of a completed round are kept for members whose connection broke over the
// reply.
constexpr auto kValuesKept = std::chrono::seconds(10);

}  // namespace

Meetings::Meetings(AgentCore& agent) : agent_(agent), table_(kValuesKept) {}

// --- as a member -----------------------------------------------------------------------------

Meetings::Set Meetings::complete(Set set) const {
  if (set.empty()) {
    for (const WorkerInfo& member : agent_.members()) set.push_back(member.name);
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  for (const std::string& name : set) agent_.peer(name);  // throws for one that is no member
  const std::string& self = agent_.runtime().name();
  if (!std::binary_search(set.begin(), set.end(), self)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} takes part in a meeting of [{}], in which it is not named", self,
                            fmt::join(set, ", ")));
  }
  return set;
}

Meetings::Contributions Meetings::meet(const Contribution& mine, Set given, Timeout timeout) {
  const Set set = complete(std::move(given));
  uint64_t round;
  {
    const base::MutexLock lock(mutex_);
    round = rounds_.take(set);
  }
  try {
    Outcome outcome = meet_in_round(mine, set, round, timeout);
    if (outcome.status == Outcome::Status::kMet) return std::move(outcome.values);
    // A barrier has no values: the others have passed it, and so has this worker.
    if (mine.bytes.empty() && mine.tensors.empty()) return {};
  } catch (...) {
    const base::MutexLock lock(mutex_);
    rounds_.give_back(set, round);
    throw;
  }
  throw Error(ErrorCode::kOutcomeUnknown,
              fmt::format("the others have met as [{}] in round {} before, and {} no longer keeps "
                          "their values",
                          fmt::join(set, ", "), round, set.front()));
}

// kMet or kPassed.
Meetings::Outcome Meetings::meet_in_round(const Contribution& mine, const Set& set, uint64_t round,
                                          Timeout timeout) {
  const auto lost = [&set](const std::string& why) {
    return Error(ErrorCode::kPeerLost, fmt::format("the meeting of [{}] cannot take place: {}",
                                                   fmt::join(set, ", "), why));
  };
  const int leader = agent_.peer(set.front()).info().id;
  Outcome outcome;
  try {
    outcome = call_until_answered<sys_gather>(agent_, leader, timeout, set, round, mine).wait();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerLost) throw lost(error.message());
    if (error.code() != ErrorCode::kTimeout) throw;
    throw Error(ErrorCode::kTimeout,
                fmt::format("the meeting of [{}] took longer than {} s; missing: {}",
                            fmt::join(set, ", "), std::chrono::duration<double>(timeout).count(),
                            name_missing(set, round, leader)));
  }
  if (outcome.status == Outcome::Status::kLost) throw lost(outcome.why);
  return outcome;
}

std::string Meetings::name_missing(const Set& set, uint64_t round, int leader) {
  try {
    const auto missing =
        own_call<sys_withdraw>(agent_, leader, std::chrono::seconds(1), set, round).wait();
    return fmt::format("{}", fmt::join(missing, ", "));
  } catch (const Error&) {
    return set.front() + " does not answer";
  }
}

// --- as the member that leads ----------------------------------------------------------------

// A set that came from outside: as meet() makes them, and with this worker to lead it.
void Meetings::check(const Set& set, const std::string& who) const {
  const std::string& self = agent_.runtime().name();
  const bool in_order =
      std::adjacent_find(set.begin(), set.end(), std::greater_equal<>()) == set.end();
  if (set.empty() || !in_order || set.front() != self ||
      !std::binary_search(set.begin(), set.end(), who)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} asks {} to lead a meeting of {} that {} does not lead or {} is not in", who,
                    self, set.size(), self, who));
  }
  for (const std::string& name : set) agent_.peer(name);  // throws for one that is no member
}

// Answers are replies to members: they are written without the lock. So is what becomes of the
// promise of a member that is not answered.
template <typename F>
void Meetings::with_table(const F& change) {
  std::vector<std::function<void()>> answers;
  MeetingTable<Contribution>::Left left;
  {
    const base::MutexLock lock(mutex_);
    if (!stopped_) change();
    answers.swap(answers_);
    left = table_.take_left();
  }
  for (const auto& answer : answers) answer();
}

Future<Meetings::Outcome> Meetings::on_arrival(Set set, uint64_t round, const std::string& who,
                                               Contribution contribution) {
  check(set, who);
  auto promise = std::make_shared<Promise<Outcome>>();
  Future<Outcome> future = promise->future();
  MeetingTable<Contribution>::Guest guest{std::move(contribution), {}};
  guest.answer = [this, promise](const Outcome& outcome) WEFT_REQUIRES(mutex_) {
    answers_.push_back([promise, outcome] { promise->set_value(outcome); });
  };
  guest.waits = [call = detail::Ref<IncomingCall>::share(IncomingCall::current())] {
    return !call->cancelled();
  };
  with_table([&]() WEFT_REQUIRES(mutex_) {
    const base::Time now = agent_.runtime().clock->now();
    table_.on_arrival(set, round, who, std::move(guest), now);
    if (!alarm_) {
      alarm_ = Alarm::make(agent_.runtime().io, [this, weak = agent_.weak_from_this()] {
        if (const auto alive = weak.lock()) sweep();
      });
    }
    alarm_->set_by(now + kSweepInterval);
  });
  return future;
}

std::vector<std::string> Meetings::on_withdrawal(const Set& set, uint64_t round,
                                                 const std::string& who) {
  std::vector<std::string> missing;
  with_table([&]() WEFT_REQUIRES(mutex_) { missing = table_.withdraw(set, round, who); });
  return missing;
}

void Meetings::sweep() {
  std::set<std::string> awaited;
  with_table([&]() WEFT_REQUIRES(mutex_) {
    const base::Time now = agent_.runtime().clock->now();
    awaited = table_.sweep(now, now - kUsualWait);
    if (!table_.empty()) alarm_->set(now + kSweepInterval);
  });
  for (const std::string& name : awaited) {
    const int rank = agent_.peer(name).info().id;
    agent_.runtime().liveness.when_known(
        rank, [this, weak = agent_.weak_from_this(), name](const std::optional<Error>& gone) {
          const auto alive = weak.lock();
          if (alive && gone && gone->code() == ErrorCode::kPeerLost) on_lost(name, gone->message());
        });
  }
}

void Meetings::on_lost(const std::string& who, const std::string& why) {
  with_table([&]() WEFT_REQUIRES(mutex_) { table_.on_lost(who, why); });
}

void Meetings::stop() {
  std::shared_ptr<Alarm> alarm;
  MeetingTable<Contribution>::Left left;  // destroyed outside the lock
  const base::MutexLock lock(mutex_);
  stopped_ = true;
  table_.clear();
  left = table_.take_left();
  alarm = std::move(alarm_);
  if (alarm) alarm->remove();
}

size_t Meetings::open_meetings() const {
  const base::MutexLock lock(mutex_);
  return table_.meetings();
}

}  // namespace weft::rpc

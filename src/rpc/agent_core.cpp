// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/agent_core.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "rpc/default_agent.h"
#include "rpc/function_table.h"
#include "rpc/own_call.h"
#include "rpc/reserved_functions.h"

namespace weft::rpc {

namespace {

constexpr auto kReplyPatience = std::chrono::seconds(1);
constexpr auto kHandlerPatience = std::chrono::seconds(1);
constexpr auto kProbeInterval = std::chrono::milliseconds(1000);
constexpr auto kReportTimeout = std::chrono::seconds(5);

[[noreturn]] void refuse_in_forked_child() {
  throw Error(ErrorCode::kNotInitialized, kForkedChildHasNoAgent);
}

}  // namespace

AgentCore::AgentCore(Group group, Options options, std::shared_ptr<base::Clock> clock,
                     std::unique_ptr<transport::Transport> transport)
    : runtime_(std::make_shared<Runtime>(std::move(group), std::move(options), std::move(clock),
                                         std::move(transport))),
      termination_(static_cast<int>(runtime_->group.members.size())) {}

std::shared_ptr<AgentCore> AgentCore::start(Group group, Options options,
                                            std::shared_ptr<base::Clock> clock,
                                            std::unique_ptr<transport::Transport> transport,
                                            std::unique_ptr<transport::Listener> listener) {
  register_reserved_functions();
  std::shared_ptr<AgentCore> core(
      new AgentCore(std::move(group), std::move(options), std::move(clock), std::move(transport)));
  try {
    core->begin(std::move(listener));
  } catch (...) {
    core->shutdown_now(base::Duration(0));
    throw;
  }
  return core;
}

void AgentCore::begin(std::unique_ptr<transport::Listener> listener) {
  for (const Member& member : runtime_->group.members) {
    members_.push_back(member.info);
    peers_.push_back(detail::make_ref<Peer>(runtime_, member));
  }
  for (auto& peer : peers_) by_name_.emplace(peer->info().name, peer.get());
  runtime_->agent = weak_from_this();
  parts_ = make_agent_parts(*this);
  server_ = std::make_unique<Server>(runtime_, *this);

  base::Crew::Limits io_limits;
  base::Crew::Limits server_limits;
  server_limits.running = std::max<size_t>(1, runtime_->options.handler_threads);
  server_limits.threads = runtime_->options.max_handler_threads;
  server_limits.standing_by = std::max<size_t>(2, std::min<size_t>(16, server_limits.running));
  io_crew_ = std::make_shared<base::Crew>("weft-io", io_limits, runtime_->io, runtime_->pulse,
                                          weak_from_this());
  server_crew_ = std::make_shared<base::Crew>("weft-serve", server_limits, *server_,
                                              runtime_->pulse, weak_from_this());
  runtime_->io.set_crew(*io_crew_);
  server_->set_crew(*server_crew_);
  runtime_->pulse.add([this] { on_tick(); });
  acceptor_ = std::make_shared<Acceptor>(runtime_, *server_, std::move(listener));

  io_crew_->start();
  server_crew_->start();
  runtime_->pulse.start();
}

void AgentCore::open() { acceptor_->start(); }

AgentCore::~AgentCore() { shutdown_now(base::Duration(0)); }

void AgentCore::on_tick() {
  io_crew_->on_tick();
  server_crew_->on_tick();
  for (auto& peer : peers_) peer->on_tick();
}

// --- calls -----------------------------------------------------------------------------------

Peer& AgentCore::peer(const Destination& to) const {
  Peer* found = nullptr;
  if (!to.name().empty() || !to.rank()) {
    auto at = by_name_.find(to.name());
    if (at != by_name_.end()) found = at->second;
  } else if (*to.rank() >= 0 && static_cast<size_t>(*to.rank()) < peers_.size()) {
    found = peers_[static_cast<size_t>(*to.rank())].get();
  }
  // A WorkerInfo has both; one of another group may agree in the name alone.
  if (!found || (to.rank() && *to.rank() != found->info().id)) refuse(to);
  return *found;
}

void AgentCore::refuse(const Destination& to) const {
  std::string names;
  for (const WorkerInfo& member : members_) {
    if (names.size() > 200) {
      names += ", ...";
      break;
    }
    names += (names.empty() ? "" : ", ") + member.name;
  }
  const std::string wanted = !to.name().empty() || !to.rank() ? fmt::format("\"{}\"", to.name())
                                                              : fmt::format("rank {}", *to.rank());
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unknown destination worker {}; {} is in a group of {}: {}", wanted,
                          runtime_->name(), members_.size(), names));
}

void AgentCore::start_call(detail::OutgoingCall& call, const detail::FunctionEntry& function,
                           const Destination& to, bool caller_waits, const Encoder& arguments) {
  if (runtime_->is_forked_copy()) refuse_in_forked_child();
  Peer& target = peer(to);
  if (function.ambiguous) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("two functions of this program are called \"{}\"; give one another name "
                    "with weft::expose<function>(\"name\")",
                    function.name));
  }
  const Timeout timeout =
      to.timeout().value_or(Timeout(runtime_->default_timeout.load(std::memory_order_relaxed)));
  if (timeout.count() < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a timeout of {} ns for {}", timeout.count(), function.name));
  }
  CallTerms terms;
  terms.caller_waits = caller_waits;
  if (timeout.count() > 0) terms.deadline = base::later(runtime_->clock->now(), timeout);
  IncomingCall* parent = IncomingCall::current();
  if (parent && &parent->server().agent() != this) parent = nullptr;
  if (parent) {
    terms.deadline = std::min(terms.deadline, parent->deadline());
    terms.depth = parent->depth() + 1;
  }
  if (Companion* companion = is_reserved(function) ? nullptr : Companion::current()) {
    OutgoingCallAccess::companion(call) =
        companion->on_call(*this, target.info(), arguments, terms.note);
  }
  target.start(call, function, arguments, terms);
  if (parent) {
    parent->add_child(detail::Ref<Peer>::share(&target), OutgoingCallAccess::id(call));
    if (parent->cancelled()) target.cancel(call);
  }
}

detail::Ref<Companion> AgentCore::on_note(const WorkerInfo& from, std::span<const std::byte> note,
                                          std::span<at::Tensor> tensors) {
  for (auto& part : parts_) {
    if (auto companion = part->on_note(from, note, tensors)) return companion;
  }
  return {};
}

void AgentCore::keep_for_receiver(const WorkerInfo& receiver,
                                  const std::vector<detail::Ref<detail::RefCounted>>& objects) {
  for (auto& part : parts_) part->keep_for_receiver(receiver, objects);
}

// --- meeting ---------------------------------------------------------------------------------

// A set that came from outside: as gather() makes them, and with us to lead it.
void AgentCore::check_meeting(const std::vector<std::string>& set, const std::string& who) const {
  const bool in_order =
      std::adjacent_find(set.begin(), set.end(), std::greater_equal<>()) == set.end();
  if (set.empty() || !in_order || set.front() != runtime_->name() ||
      !std::binary_search(set.begin(), set.end(), who)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} asks {} to lead a meeting of {} that it does not lead or {} is not in", who,
                    runtime_->name(), set.size(), who));
  }
  for (const std::string& name : set) peer(name);  // throws for one that is no member
}

Future<AgentCore::Parts> AgentCore::on_gather(std::vector<std::string> set, uint64_t round,
                                              std::string who, GatheredPart part) {
  check_meeting(set, who);
  auto promise = std::make_shared<Promise<Parts>>();
  std::lock_guard lock(meeting_mutex_);
  gathering_.on_arrival(set, round, who, std::move(part),
                        [promise](const Parts& all) { promise->set_value(all); });
  return promise->future();
}

std::vector<std::string> AgentCore::on_withdraw(const std::vector<std::string>& set, uint64_t round,
                                                const std::string& who) {
  std::lock_guard lock(meeting_mutex_);
  return gathering_.withdraw(set, round, who);
}

AgentCore::Parts AgentCore::gather(GatheredPart mine, std::vector<std::string> set,
                                   Timeout timeout) {
  if (set.empty()) {
    for (const WorkerInfo& member : members_) set.push_back(member.name);
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  for (const std::string& name : set) peer(name);  // throws for one that is no member
  if (!std::binary_search(set.begin(), set.end(), runtime_->name())) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} takes part in a meeting it is not named for", runtime_->name()));
  }
  uint64_t round;
  {
    std::lock_guard lock(meeting_mutex_);
    round = rounds_[set]++;
  }
  const int leader = peer(set.front()).info().id;
  try {
    return own_call<sys_gather>(*this, leader, timeout, set, round, mine).wait();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    std::string missing;
    try {
      for (const std::string& name :
           own_call<sys_withdraw>(*this, leader, std::chrono::seconds(1), set, round).wait()) {
        missing += (missing.empty() ? "" : ", ") + name;
      }
    } catch (const Error&) {
      missing = set.front() + " does not answer";
    }
    {
      // Those who come late find us in the same round when we try again.
      std::lock_guard lock(meeting_mutex_);
      if (rounds_[set] == round + 1) rounds_[set] = round;
    }
    throw Error(ErrorCode::kTimeout,
                fmt::format("timed out in all_gather after {} seconds; missing: {}",
                            std::chrono::duration<double>(timeout).count(), missing));
  }
}

// --- shutdown --------------------------------------------------------------------------------

// Read in this order: a chain of calls moves from outstanding to a continuation and back, and each
// step back makes the activity grow. What calls leave behind, such as references, goes to the
// parts.
Idleness AgentCore::idleness() {
  AgentCounters& counters = runtime_->counters;
  const auto activity = [&counters] {
    return counters.calls_started.value() + counters.calls_served.value();
  };
  const uint64_t before = activity();
  Idleness all{counters.outstanding.load(std::memory_order_acquire) == 0 &&
                   runtime_->io.unfinished() == 0 &&
                   counters.serving.load(std::memory_order_acquire) == 0,
               before};
  for (const auto& part : parts_) {
    const Idleness its = part->idleness();
    all.idle = all.idle && its.idle;
    all.activity += its.activity;
  }
  all.idle = all.idle && activity() == before;
  return all;
}

Future<Termination::Verdict> AgentCore::on_report(int rank, bool idle, uint64_t activity) {
  auto promise = std::make_shared<Promise<Termination::Verdict>>();
  std::unique_lock lock(meeting_mutex_);
  termination_.on_report(rank, idle, activity, [promise](const Termination::Verdict& verdict) {
    promise->set_value(verdict);
  });
  lock.unlock();
  probe_missing();
  return promise->future();
}

int AgentCore::coordinator() const {
  std::lock_guard lock(meeting_mutex_);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!termination_.dead().contains(rank)) return rank;
  }
  return runtime_->self().info.id;
}

// Asks those who have not reported whether they live, again and again until they report or do not.
void AgentCore::probe_missing() {
  if (probing_.exchange(true)) return;
  std::thread([self = shared_from_this()] {
    while (!self->stopping_.load(std::memory_order_acquire)) {
      std::vector<int> missing;
      {
        std::lock_guard lock(self->meeting_mutex_);
        missing = self->termination_.missing();
      }
      for (const int rank : missing) {
        if (rank == self->runtime_->self().info.id) continue;
        auto probe = own_call<sys_alive>(*self, rank, std::chrono::seconds(10));
        probe.on_ready([weak = std::weak_ptr(self), rank](const Future<void>& done) {
          const auto error = done.error();
          auto core = weak.lock();
          if (!core || !error || error->code() != ErrorCode::kUnavailable) return;
          std::lock_guard lock(core->meeting_mutex_);
          core->termination_.on_dead(rank);
        });
      }
      for (int i = 0; i < 50 && !self->stopping_.load(std::memory_order_acquire); ++i) {
        std::this_thread::sleep_for(kProbeInterval / 50);
      }
    }
  }).detach();
}

// Whoever asks coordinates, so he lives, whatever we believed; of several the first does.
void AgentCore::on_probe(int coordinator) {
  std::lock_guard lock(meeting_mutex_);
  termination_.on_alive(coordinator);
}

Termination::Verdict AgentCore::wait_for_group() {
  std::chrono::microseconds pause(100);
  while (!stopping_.load(std::memory_order_acquire)) {
    const Idleness now = idleness();
    if (!now.idle) {
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(10));
      continue;
    }
    pause = std::chrono::microseconds(100);
    const int rank = coordinator();
    try {
      // Limited, so that a change of coordinator is noticed.
      const Termination::Verdict verdict =
          wait_patiently(own_call<sys_report>(*this, rank, kReportTimeout, now.idle, now.activity));
      if (verdict.finished) return verdict;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kShuttingDown) break;
      if (error.code() != ErrorCode::kUnavailable) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;  // late, or the connection broke: whether it lives shows when we connect again
      }
      base::log(
          LogLevel::kInfo, runtime_->name(),
          fmt::format("{} is gone: {}", members_[static_cast<size_t>(rank)].name, error.message()));
      std::lock_guard lock(meeting_mutex_);
      termination_.on_dead(rank);
    }
  }
  std::lock_guard lock(meeting_mutex_);
  return {true, {termination_.dead().begin(), termination_.dead().end()}};
}

ShutdownReport AgentCore::shutdown() {
  if (IncomingCall::current() || detail::BlockingObserver::current()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "a graceful shutdown inside a function that serves a call, or in a continuation, would "
        "wait for itself");
  }
  if (runtime_->is_forked_copy()) return {};
  std::lock_guard only_one(stop_mutex_);
  if (stopped()) return report_;
  const Termination::Verdict verdict = wait_for_group();
  std::string names;
  for (const int rank : verdict.dead) {
    if (rank < 0 || static_cast<size_t>(rank) >= members_.size()) continue;
    report_.lost_workers.push_back(members_[static_cast<size_t>(rank)].name);
    names += (names.empty() ? "" : ", ") + report_.lost_workers.back();
  }
  if (!names.empty()) {
    base::log(LogLevel::kWarning, runtime_->name(),
              "shut down without these workers, which are gone: " + names);
  }
  stop(/*let_replies_out=*/true, kHandlerPatience);
  return report_;
}

void AgentCore::shutdown_now(base::Duration patience) {
  if (runtime_->is_forked_copy()) return;
  stopping_.store(true, std::memory_order_release);  // ends a graceful one that waits
  if (!stopped()) {
    const Error why(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
    for (auto& peer : peers_) peer->close(why);
  }
  std::lock_guard only_one(stop_mutex_);
  if (!stopped()) stop(/*let_replies_out=*/false, patience);
}

// Refuse new, let out what is due, cancel the rest, join.
void AgentCore::stop(bool let_replies_out, base::Duration patience) {
  stopping_.store(true, std::memory_order_release);
  for (auto& part : parts_) part->on_stopping();
  if (acceptor_) acceptor_->stop();
  if (let_replies_out) server_->finish_sending(kReplyPatience);
  const Error why(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
  for (auto& peer : peers_) peer->close(why);
  if (server_) server_->close_all();
  runtime_->pulse.stop();
  const bool io_ended = !io_crew_ || io_crew_->stop(kHandlerPatience);
  const bool served = !server_crew_ || server_crew_->stop(patience);
  runtime_->io.finish();
  if (acceptor_) acceptor_->close_guests();
  abandon_meetings();
  if (!io_ended || !served) {
    base::log(LogLevel::kWarning, runtime_->name(),
              "shut down while functions were still running; their threads end when they return");
  }
  stopped_.store(true, std::memory_order_release);
}

// What still waits here holds on to calls, and they to us.
void AgentCore::abandon_meetings() {
  std::lock_guard lock(meeting_mutex_);
  gathering_.abandon_all();
  termination_ = Termination(static_cast<int>(members_.size()));
}

// --- looking in ------------------------------------------------------------------------------

DebugInfo AgentCore::debug_info() {
  DebugInfo info;
  info.worker = runtime_->name();
  AgentCounters& counters = runtime_->counters;
  info.counters = {
      {"calls.started", counters.calls_started.value()},
      {"calls.outstanding",
       static_cast<uint64_t>(std::max<int64_t>(0, counters.outstanding.load()))},
      {"calls.served", counters.calls_served.value()},
      {"calls.serving", static_cast<uint64_t>(std::max<int64_t>(0, counters.serving.load()))},
      {"calls.timed_out", counters.timeouts.value()},
      {"calls.given_up_unstarted", counters.cancelled_unstarted.value()},
      {"calls.backlog", server_->backlog()},
      {"replies.late", counters.late_replies.value()},
      {"connections.bad", counters.bad_connections.value()},
      {"connections.serving", server_->links()},
      {"continuations.unfinished", runtime_->io.unfinished()},
      {"threads.io", io_crew_->threads()},
      {"threads.serve", server_crew_->threads()},
      {"threads.serve.idle", server_crew_->idle()},
      {"memory.receive_pool", runtime_->pool->kept_bytes()},
  };
  size_t pending = 0;
  for (auto& peer : peers_) {
    pending += peer->outstanding();
    PeerCounters& counted = peer->counters();
    if (counted.calls.value() == 0) continue;
    PeerStats stats;
    stats.name = peer->info().name;
    stats.state = peer->state_name();
    stats.calls = counted.calls.value();
    stats.failed = counted.failed.value();
    stats.connects = counted.connects.value();
    stats.handovers = counted.handovers.value();
    stats.bytes_sent = peer->bytes_sent();
    stats.bytes_received = peer->bytes_received();
    stats.round_trip = summarize(counted.round_trip);
    info.peers.push_back(std::move(stats));
  }
  info.counters["calls.pending"] = pending;
  info.functions = server_->function_stats();
  for (auto& part : parts_) part->describe(info);
  return info;
}

}  // namespace weft::rpc

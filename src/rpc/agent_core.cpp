// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/agent_core.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "arena/arena.h"
#include "base/log.h"
#include "rpc/default_agent.h"
#include "rpc/functions/function_table.h"
#include "rpc/reserved_functions.h"

namespace weft::rpc {

namespace {

constexpr auto kReplyPatience = std::chrono::seconds(1);
constexpr auto kHandlerPatience = std::chrono::seconds(1);

[[noreturn]] void refuse_in_forked_child() {
  throw Error(ErrorCode::kNotInitialized, kForkedChildHasNoAgent);
}

}  // namespace

AgentCore::AgentCore(Group group, Options options, std::shared_ptr<base::Clock> clock,
                     std::unique_ptr<transport::Transport> transport)
    : runtime_(std::make_shared<Runtime>(std::move(group), std::move(options), std::move(clock),
                                         std::move(transport))),
      meetings_(*this),
      group_shutdown_(*this) {}

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
    peers_.push_back(std::make_unique<Peer>(runtime_, member));
  }
  for (auto& peer : peers_) by_name_.emplace(peer->info().name, peer.get());
  runtime_->agent = weak_from_this();
  extensions_ = make_agent_extensions(*this);
  runtime_->liveness.subscribe([weak = weak_from_this()](int rank, const Error& why) {
    if (const auto core = weak.lock()) core->on_member_gone(rank, why);
  });
  server_ = std::make_unique<Server>(runtime_, *this);

  base::Crew::Limits io_limits;
  io_limits.running = std::max<size_t>(2, runtime_->cpus);
  io_limits.standing_by = std::clamp<size_t>(runtime_->cpus, 4, 16);
  base::Crew::Limits server_limits;
  server_limits.running = runtime_->handler_threads;
  // Leaders of desks wait for calls; one thread may do both.
  server_limits.threads = runtime_->options.max_handler_threads + Server::desks_of(*runtime_) - 1;
  // Fewer than may be in use besides leaders: threads that stand by keep nobody out.
  server_limits.standing_by =
      std::min(std::clamp<size_t>(server_limits.running, 2, 16),
               runtime_->options.max_handler_threads - runtime_->handler_threads - 1);
  server_limits.spin = runtime_->spin;
  io_crew_ = std::make_shared<base::Crew>("weft-io", io_limits, runtime_->pulse, weak_from_this());
  server_crew_ =
      std::make_shared<base::Crew>("weft-serve", server_limits, runtime_->pulse, weak_from_this());
  runtime_->io.set_crew(io_crew_);
  server_->set_crew(*server_crew_);
  idle_trim_ = std::make_shared<IdleTrim>(*runtime_);
  runtime_->pulse.add([this] { on_tick(); });
  acceptor_ = std::make_shared<Acceptor>(runtime_, *server_, std::move(listener));

  io_crew_->start(runtime_->io);
  server_->start();
  runtime_->pulse.start();
}

void AgentCore::open() { acceptor_->start(); }

AgentCore::~AgentCore() { shutdown_now(base::Duration(0)); }

void AgentCore::on_tick() {
  io_crew_->on_tick();
  server_crew_->on_tick();
  runtime_->ticking.on_tick();
  idle_trim_->on_tick();
}

// Whoever found it out: everything that depends on the member learns of it at once.
void AgentCore::on_member_gone(int rank, const Error& why) {
  if (stopped()) return;
  const WorkerInfo& member = members_[static_cast<size_t>(rank)];
  meetings_.on_lost(member.name, why.message());
  for (auto& extension : extensions_) extension->on_member_gone(member, why);
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
                           const Destination& to, bool caller_waits, Encoder& arguments) {
  if (runtime_->is_forked_copy()) refuse_in_forked_child();
  Peer& callee = peer(to);
  if (function.ambiguous) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("two functions of this program are called \"{}\"; give one another name "
                    "with weft::expose<function>(\"name\")",
                    function.name));
  }
  const Timeout timeout = to.options().timeout.value_or(
      Timeout(runtime_->default_timeout.load(std::memory_order_relaxed)));
  if (timeout.count() < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a timeout of {} ns for {}", timeout.count(), function.name));
  }
  CallLimits limits;
  limits.asked = limits.connected = runtime_->clock->now();
  limits.caller_waits = caller_waits;
  if (timeout.count() > 0) limits.deadline = base::later(limits.asked, timeout);
  IncomingCall* parent = IncomingCall::current();
  if (parent && &parent->server().agent() != this) parent = nullptr;
  if (parent) {
    limits.deadline = std::min(limits.deadline, parent->deadline());
    limits.depth = parent->depth() + 1;
  }
  // After the deadline is known: to wait for a connection takes the call's time.
  CallingLink* link = is_reserved(function) ? &callee.first() : &callee.of_this_thread(limits);
  if (Companion* companion = is_reserved(function) ? nullptr : Companion::current()) {
    OutgoingCallAccess::companion(call) =
        companion->on_call(*this, callee.info(), arguments, limits.note);
  }
  if (!link->start(call, function, arguments, limits)) {
    link = &callee.first();  // which is never retired
    limits.connected = runtime_->clock->now();
    link->start(call, function, arguments, limits);
  }
  if (parent) {
    try {
      parent->add_child(detail::Ref<CallingLink>::share(link), OutgoingCallAccess::id(call));
    } catch (const std::bad_alloc&) {
      // The call has been sent: it is not given up with its parent, that is all.
    }
    if (parent->cancelled()) link->cancel(call);
  }
}

detail::Ref<Companion> AgentCore::on_note(const WorkerInfo& from, std::span<const std::byte> note,
                                          std::span<at::Tensor> tensors) {
  for (auto& extension : extensions_) {
    if (auto companion = extension->on_note(from, note, tensors)) return companion;
  }
  return {};
}

void AgentCore::keep_for_receiver(const WorkerInfo& receiver,
                                  const std::vector<detail::Ref<detail::RefCounted>>& objects) {
  for (auto& extension : extensions_) extension->keep_for_receiver(receiver, objects);
}

// --- shutdown --------------------------------------------------------------------------------

// The counters are read in this order: a chain of calls moves from outstanding to a continuation
// and back, and each step back makes the activity grow. Extensions come last: calls leave work to
// them, such as releases of references.
Idleness AgentCore::idleness() {
  AgentCounters& counters = runtime_->counters;
  const auto activity = [&counters] {
    return counters.outstanding.begun() + counters.serving.begun();
  };
  const uint64_t before = activity();
  Idleness all{counters.outstanding.value() == 0 && runtime_->io.unfinished() == 0 &&
                   counters.serving.value() == 0,
               before};
  for (const auto& extension : extensions_) {
    const Idleness its = extension->idleness();
    all.idle = all.idle && its.idle;
    all.activity += its.activity;
  }
  all.idle = all.idle && activity() == before;
  return all;
}

std::vector<std::string> AgentCore::unfinished() {
  std::vector<std::string> what;
  for (const CallInFlight& call : calls_in_flight(CallsOf::kUsers)) what.push_back(to_text(call));
  if (const size_t count = runtime_->io.unfinished())
    what.push_back(fmt::format(
        "{} continuations of futures or tasks of collectives have not returned", count));
  for (const auto& extension : extensions_) {
    if (extension->idleness().idle) continue;
    if (std::string text = extension->unfinished(); !text.empty()) what.push_back(std::move(text));
  }
  constexpr size_t kMostNamed = 8;
  if (what.size() > kMostNamed) {
    const size_t more = what.size() - kMostNamed;
    what.resize(kMostNamed);
    what.push_back(fmt::format("and {} more", more));
  }
  return what;
}

ShutdownReport AgentCore::shutdown() {
  if (IncomingCall::current() || detail::BlockingObserver::current()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "a graceful shutdown inside a function that serves a call, or in a continuation, would "
        "wait for itself");
  }
  if (runtime_->is_forked_copy()) return {};
  const base::MutexLock only_one(stop_mutex_);
  if (stopped()) return report_;
  const Termination::Verdict verdict = group_shutdown_.wait();
  std::string names;
  for (const int rank : verdict.dead) {
    if (rank < 0 || static_cast<size_t>(rank) >= members_.size()) continue;
    report_.lost_workers.push_back(members_[static_cast<size_t>(rank)].name);
    names += (names.empty() ? "" : ", ") + report_.lost_workers.back();
  }
  if (!names.empty()) {
    base::log(LogLevel::kWarning, runtime_->name(),
              "shut down without these workers, which are gone: {}", names);
  }
  stop(/*let_replies_out=*/true, kHandlerPatience);
  return report_;
}

void AgentCore::shutdown_now(base::Duration patience) {
  if (runtime_->is_forked_copy()) return;
  group_shutdown_.stop();  // ends a graceful one that waits
  if (!stopped()) {
    const Error why(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
    for (auto& peer : peers_) peer->close(why);
  }
  const base::MutexLock only_one(stop_mutex_);
  if (!stopped()) stop(/*let_replies_out=*/false, patience);
}

// Refuse new, let out what is due, cancel the rest, join.
void AgentCore::stop(bool let_replies_out, base::Duration patience) {
  group_shutdown_.stop();
  runtime_->liveness.stop();
  for (auto& extension : extensions_) extension->on_stopping();
  if (acceptor_) acceptor_->stop();
  if (let_replies_out) server_->finish_sending(kReplyPatience);
  const Error why(ErrorCode::kShuttingDown, runtime_->name() + " was shut down");
  for (auto& peer : peers_) peer->close(why);
  if (server_) server_->close_all();
  runtime_->pulse.stop();
  runtime_->ticking.close();
  if (idle_trim_) idle_trim_->stop();
  const bool io_ended = !io_crew_ || io_crew_->stop(kHandlerPatience);
  const bool served = !server_crew_ || server_crew_->stop(patience);
  runtime_->io.finish();
  if (acceptor_) acceptor_->close_guests();
  meetings_.stop();
  group_shutdown_.clear();
  if (!io_ended || !served) {
    base::log(LogLevel::kWarning, runtime_->name(),
              "shut down while functions were still running; their threads end when they return");
  }
  stopped_.store(true, std::memory_order_release);
}

// --- looking in ------------------------------------------------------------------------------

std::vector<CallInFlight> AgentCore::calls_in_flight(CallsOf whom) {
  const bool reserved_too = whom == CallsOf::kEverybody;
  std::vector<CallInFlight> calls;
  for (auto& peer : peers_) {
    for (auto& link : peer->all()) link->describe_calls(calls, reserved_too);
  }
  server_->describe_calls(calls, reserved_too);
  return calls;
}

DebugInfo AgentCore::debug_info() {
  DebugInfo info;
  info.worker = runtime_->name();
  AgentCounters& counters = runtime_->counters;
  info.counters = {
      {"calls.started", counters.outstanding.begun()},
      {"calls.outstanding", counters.outstanding.value()},
      {"calls.served", counters.serving.begun()},
      {"calls.serving", counters.serving.value()},
      {"calls.timed_out", counters.timeouts.value()},
      {"calls.given_up_unstarted", counters.cancelled_unstarted.value()},
      {"calls.backlog", server_->waiting()},
      {"replies.late", counters.late_replies.value()},
      {"connections.bad", counters.bad_connections.value()},
      {"connections.serving", server_->links()},
      {"continuations.unfinished", runtime_->io.unfinished()},
      {"threads.io", io_crew_->threads()},
      {"threads.serve", server_crew_->threads()},
      {"threads.serve.idle", server_crew_->idle()},
      {"memory.receive_pool", runtime_->pool->kept_bytes()},
  };
  if (arena::Arena* arena = arena::Arena::existing()) {
    const arena::Arena::Usage usage = arena->usage();
    info.counters["memory.shared"] = usage.used_bytes;
    info.counters["memory.shared.loans"] = usage.loans;
  }
  size_t pending = 0;
  for (auto& peer : peers_) {
    PeerStats stats;
    observe::Histogram round_trip;
    for (auto& link : peer->all()) {
      pending += link->outstanding();
      LinkCounters& counted = link->counters();
      stats.calls += counted.calls.value();
      stats.failed += counted.failed.value();
      stats.connects += counted.connects.value();
      stats.handovers += counted.handovers.value();
      stats.bytes_sent += link->bytes_sent();
      stats.bytes_received += link->bytes_received();
      round_trip.add(counted.round_trip);
    }
    if (stats.calls == 0) continue;
    stats.name = peer->info().name;
    stats.state = peer->state_name();
    stats.transport = peer->transport();
    stats.detour = runtime_->transport->detour(peer->address());
    stats.round_trip = summarize(round_trip);
    info.peers.push_back(std::move(stats));
  }
  info.counters["calls.pending"] = pending;
  info.functions = server_->statistics().summarize();
  info.calls = calls_in_flight(CallsOf::kEverybody);
  for (auto& extension : extensions_) extension->describe(info);
  return info;
}

}  // namespace weft::rpc

// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "rpc/agent_core.h"
#include "rpc/functions/function_table.h"

namespace weft::rpc {

namespace {

using transport::Poller;

// A function that usually takes longer than this is not run by the leader: waking another thread
// to lead costs a tenth of it.
constexpr int64_t kWorthAHandOver = 50'000;  // ns
constexpr auto kStarving = std::chrono::milliseconds(20);
constexpr int kReceivesPerTurn = 64;
constexpr int kPollsPerLook = 32;  // at the other links, while spinning on one

}  // namespace

LatencySummary summarize(const observe::Histogram& histogram) {
  LatencySummary summary;
  summary.count = histogram.count();
  if (summary.count == 0) return summary;
  summary.mean_us =
      1e-3 * static_cast<double>(histogram.sum()) / static_cast<double>(summary.count);
  summary.p50_us = 1e-3 * static_cast<double>(histogram.quantile(0.5));
  summary.p90_us = 1e-3 * static_cast<double>(histogram.quantile(0.9));
  summary.p99_us = 1e-3 * static_cast<double>(histogram.quantile(0.99));
  return summary;
}

namespace {

// The role of this thread in serving.
struct Role {
  bool leads = false;
  bool in_user_code = false;
  // The replies of this link are sent together at the end of the batch.
  const ServingLink* batching = nullptr;
};
thread_local Role role;

}  // namespace

Server::Server(std::shared_ptr<Runtime> runtime, AgentCore& agent)
    : runtime_(std::move(runtime)),
      agent_(agent),
      function_counters_(new FunctionCounters[function_count() + 64]),
      function_count_(function_count() + 64) {}

Server::~Server() = default;

Server::FunctionCounters& Server::counters_of(const detail::FunctionEntry& function) {
  // Functions of libraries that were loaded later share the last place.
  return function_counters_[std::min(function.index, function_count_ - 1)];
}

// --- links -----------------------------------------------------------------------------------

Server::Adoption Server::adopt(detail::Ref<Link> link, const WorkerInfo& caller) {
  const int descriptor = link->descriptor();
  auto serving = detail::make_ref<ServingLink>(*this, std::move(link), caller);
  std::lock_guard lock(mutex_);
  if (closed_) return Adoption::kClosed;
  serving->token = next_token_++;
  if (!poller_.add(descriptor, Poller::kReadable, serving->token))
    return Adoption::kOutOfDescriptors;
  links_.emplace(serving->token, serving);
  return Adoption::kServed;
}

detail::Ref<ServingLink> Server::find(uint64_t token) {
  std::lock_guard lock(mutex_);
  auto found = links_.find(token);
  return found == links_.end() ? detail::Ref<ServingLink>() : found->second;
}

void Server::drop(ServingLink& link, const std::string& why, bool suspicious) {
  if (std::exchange(link.lost, true)) return;
  if (suspicious) {
    runtime_->counters.bad_connections.add();
    base::log(LogLevel::kWarning, runtime_->name(),
              fmt::format("closing the connection of {} from {}: {}", link.caller().name,
                          link.link().connection().remote_address(), why));
  }
  poller_.remove(link.link().descriptor());
  link.link().close();
  link.cancel_all();
  if (hot_.get() == &link) hot_ = {};
  std::lock_guard lock(mutex_);
  links_.erase(link.token);
}

// Only while this thread leads: a thread that took the lead has flushed, and does not flush for
// this thread again.
bool Server::flushes_later(ServingLink& link) const {
  return role.batching == &link && crew_->still_leads();
}

void Server::watch(int descriptor, uint32_t interest, uint64_t token) {
  poller_.change(descriptor, interest, token);
}

void Server::finish_sending(base::Duration patience) {
  std::vector<detail::Ref<ServingLink>> links;
  {
    std::lock_guard lock(mutex_);
    for (auto& [token, link] : links_) links.push_back(link);
  }
  const base::Time until = std::chrono::steady_clock::now() + patience;
  for (auto& link : links) {
    // Answers that are being written, and those that are still being made.
    while (link->link().flush() != Link::State::kBroken &&
           (link->link().unsent_bytes() > 0 || link->has_calls()) &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    link->link().finish_sending();
  }
}

void Server::close_all() {
  std::unordered_map<uint64_t, detail::Ref<ServingLink>> links;
  std::deque<detail::Ref<IncomingCall>> backlog;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    links.swap(links_);
    backlog.swap(backlog_);
    backlog_size_ = 0;
  }
  for (auto& [token, link] : links) {
    poller_.remove(link->link().descriptor());
    link->link().close();
    link->cancel_all();
  }
}

// --- leading ---------------------------------------------------------------------------------

void Server::lead() {
  // The previous leader lost the lead while it served a batch: this thread first sends that batch's
  // queued replies, then serves its remaining frames.
  if (current_) {
    current_->flush();
    if (!serve_frames(*current_)) return;
    current_ = {};
  }
  while (!crew_->stopping()) {
    if (!serve_ready()) return;
  }
}

bool Server::serve_ready() {
  if (hot_ && runtime_->spin.count() > 0) {
    const detail::Ref<ServingLink> hot = std::exchange(hot_, {});
    if (!spin_on(*hot)) return false;
  }
  return serve_events(std::nullopt);
}

bool Server::serve_events(std::optional<base::Duration> limit) {
  for (const transport::PollEvent& event : poller_.wait(limit)) {
    detail::Ref<ServingLink> link = find(event.token);
    if (!link) continue;
    // A paused link reports no bytes, but its end.
    if (event.writable || link->paused()) {
      const Link::State state = link->link().flush();
      link->update_interest();
      if (state == Link::State::kBroken) {
        drop(*link, link->link().why_broken(), false);
        continue;
      }
    }
    // When the lead is lost the events left here are reported again to the next leader.
    if (event.readable && !receive_and_serve(*link)) return false;
  }
  return true;
}

// Polls the link served last, for as long as the options say, before the thread sleeps.
bool Server::spin_on(ServingLink& link) {
  spinner_.begin(runtime_->spin);
  for (int polls = 1;; ++polls) {
    if (link.lost || link.paused() || crew_->stopping()) return true;
    const uint64_t before = link.link().received_bytes();
    if (!receive_and_serve(link)) return false;
    // However busy this one is, the others are looked at.
    if (polls % kPollsPerLook == 0 && !serve_events(base::Duration(0))) return false;
    if (link.link().received_bytes() != before) {
      spinner_.begin(runtime_->spin);
    } else if (!spinner_.again()) {
      return true;
    }
  }
}

bool Server::receive_and_serve(ServingLink& link) {
  if (link.paused() || link.lost) return true;
  for (int i = 0; i < kReceivesPerTurn; ++i) {
    switch (link.link().receive()) {
      case Link::State::kBlocked:
        return true;
      case Link::State::kBroken:
        drop(link, link.link().why_broken(), false);
        return true;
      case Link::State::kFine:
        break;
    }
    current_ = detail::Ref<ServingLink>::share(&link);
    if (!serve_frames(link)) return false;
    current_ = {};
    if (link.lost || !link.link().within_frame()) break;
  }
  if (!link.lost && runtime_->spin.count() > 0) hot_ = detail::Ref<ServingLink>::share(&link);
  return true;
}

bool Server::serve_frames(ServingLink& link) {
  role = {true, false, &link};
  runtime_->pulse.touch();
  try {
    while (!link.lost && link.link().next_frame()) {
      const wire::FrameHeader& header = link.link().frame().header;
      if (link.said_goodbye) {
        Decoder::fail(
            fmt::format("a frame of kind {} after goodbye", static_cast<int>(header.kind)));
      }
      switch (header.kind) {
        case wire::FrameKind::kCall:
          if (!serve_call(link)) {
            role = {};
            return false;
          }
          break;
        case wire::FrameKind::kCancel:
          link.cancel(header.id);
          break;
        case wire::FrameKind::kPing: {
          wire::FrameHeader pong{wire::FrameKind::kPong};
          pong.id = header.id;
          link.link().queue(pong, link.link().lane_for_urgent());
          break;
        }
        case wire::FrameKind::kGoodbye:
          link.said_goodbye = true;  // what was asked before is still answered
          break;
        default:
          Decoder::fail(
              fmt::format("a frame of kind {} from a caller", static_cast<int>(header.kind)));
      }
    }
  } catch (const Error& error) {
    drop(link, error.message(), true);
  }
  role = {};
  if (!link.lost && link.link().has_queued()) link.flush();
  return true;
}

bool Server::serve_call(ServingLink& link) {
  wire::Frame& frame = link.link().frame();
  std::span<const std::byte> arguments = frame.body;
  const wire::CallPrelude prelude = wire::read_prelude(frame.header.flags, arguments);
  const ResolvedFunction& function = link.resolve(prelude, frame.header.flags);
  if (!function.entry) {
    Encoder body;
    wire::encode_failed(body, {function.error, "", function.why});
    wire::FrameHeader header{wire::FrameKind::kReply, wire::kFailed};
    header.id = frame.header.id;
    link.link().queue(header, {}, body);
    return true;
  }
  auto call =
      detail::make_ref<IncomingCall>(*this, detail::Ref<ServingLink>::share(&link), frame.header.id,
                                     *function.entry, prelude, runtime_->clock->now());
  if (!is_reserved(*function.entry)) {
    runtime_->counters.calls_served.add();
    runtime_->counters.serving.fetch_add(1, std::memory_order_relaxed);
  }
  if (link.take_early_cancel(frame.header.id)) {
    call->cancel();
    runtime_->counters.cancelled_unstarted.add();
    call->refuse(ErrorCode::kCancelled, "given up by the caller before it arrived");
    return true;
  }
  if (prelude.depth > runtime_->options.max_call_depth) {
    call->refuse(ErrorCode::kLimitExceeded,
                 fmt::format("calls nest {} deep; the limit is {}", prelude.depth,
                             runtime_->options.max_call_depth));
    return true;
  }
  if (crew_->out_of_threads()) {
    call->refuse(ErrorCode::kLimitExceeded,
                 fmt::format("all {} handler threads are in use", crew_->threads()));
    return true;
  }
  if (!prelude.note.empty() && !welcome(*call, prelude.note, frame.tensors)) return true;
  if (!is_reserved(*function.entry) && crew_->running() >= crew_->limit()) {
    call->park(arguments, std::move(frame.tensors));
    std::lock_guard lock(mutex_);
    if (backlog_.empty()) backlog_moved_ = call->arrived();
    backlog_.push_back(std::move(call));
    backlog_size_.store(backlog_.size(), std::memory_order_relaxed);
    runtime_->pulse.touch();  // after it is there: the pulse must not fall asleep over it
    return true;
  }
  return run_here(*call, frame, arguments);
}

// False: it was refused.
bool Server::welcome(IncomingCall& call, std::span<const std::byte> note,
                     std::span<at::Tensor> tensors) {
  try {
    call.set_companion(agent_.on_note(call.caller(), note, tensors));
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kBadMessage) throw;
    call.refuse(error.code(), error.message());
    return false;
  }
}

bool Server::run_here(IncomingCall& call, wire::Frame& frame,
                      std::span<const std::byte> arguments) {
  detail::Ref<ServingLink> link = current_;
  // A reply that no other can join goes out before this thread tidies up after the call.
  role.batching = link->link().within_frame() ? link.get() : nullptr;
  call.run(arguments, frame.tensors);
  // A call that waits for something may be in user code by now, but not on this thread.
  if (!std::exchange(role.in_user_code, false) || crew_->leave_user_code()) return true;
  role = {};
  link->flush();  // the reply was left for the leader, which this thread no longer is
  return false;
}

void Server::on_user_code(IncomingCall& call) {
  if (!role.leads) return;  // from the backlog, or after a wait
  role.in_user_code = true;
  crew_->enter_user_code();
  if (counters_of(call.function()).typical_ns.load(std::memory_order_relaxed) > kWorthAHandOver &&
      crew_->running() + 1 < crew_->limit()) {
    role.batching = nullptr;
    crew_->give_up_lead();
  }
}

void Server::on_answered(IncomingCall& call, bool failed, base::Duration took) {
  FunctionCounters& counters = counters_of(call.function());
  counters.served.fetch_add(1, std::memory_order_relaxed);
  if (failed) counters.failed.fetch_add(1, std::memory_order_relaxed);
  if (call.in_user_code()) {
    counters.handler.record(took.count());
    const int64_t before = counters.typical_ns.load(std::memory_order_relaxed);
    counters.typical_ns.store(before + (took.count() - before) / 8, std::memory_order_relaxed);
  }
  if (!is_reserved(call.function())) {
    runtime_->counters.serving.fetch_sub(1, std::memory_order_release);
  }
}

// --- the backlog -----------------------------------------------------------------------------

bool Server::run_from_backlog() {
  if (backlog_size_.load(std::memory_order_relaxed) == 0) return false;
  detail::Ref<IncomingCall> call;
  const base::Time now = runtime_->clock->now();
  {
    std::lock_guard lock(mutex_);
    if (backlog_.empty()) return false;
    call = std::move(backlog_.front());
    backlog_.pop_front();
    backlog_moved_ = now;
    backlog_size_.store(backlog_.size(), std::memory_order_relaxed);
  }
  if (call->cancelled() || now >= call->deadline()) {
    runtime_->counters.cancelled_unstarted.add();
    call->refuse(ErrorCode::kTimeout, "given up by the caller before it began");
    return true;
  }
  call->run_parked();
  return true;
}

bool Server::backlog_starves() {
  if (backlog_size_.load(std::memory_order_relaxed) == 0) return false;
  runtime_->pulse.touch();
  const bool free_slot = crew_->running() < crew_->limit();
  std::lock_guard lock(mutex_);
  if (backlog_.empty()) return false;
  if (free_slot) return true;
  const base::Time now = runtime_->clock->now();
  if (now - backlog_moved_ < kStarving) return false;
  backlog_moved_ = now;  // one extra thread at a time
  return true;
}

size_t Server::backlog() const { return backlog_size_.load(std::memory_order_relaxed); }

void Server::describe_calls(std::vector<CallInFlight>& calls, bool reserved_too) const {
  std::vector<detail::Ref<ServingLink>> links;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [token, link] : links_) links.push_back(link);
  }
  for (const auto& link : links) link->describe_calls(calls, reserved_too, runtime_->clock->now());
}

size_t Server::links() const {
  std::lock_guard lock(mutex_);
  return links_.size();
}

std::vector<FunctionStats> Server::function_stats() const {
  std::vector<FunctionStats> all;
  for (uint32_t i = 0; i < function_count_; ++i) {
    const FunctionCounters& counters = function_counters_[i];
    if (counters.served.load(std::memory_order_relaxed) == 0) continue;
    FunctionStats stats;
    const detail::FunctionEntry* entry = function_at(i);
    stats.name = entry ? entry->name : "(others)";
    stats.served = counters.served.load(std::memory_order_relaxed);
    stats.failed = counters.failed.load(std::memory_order_relaxed);
    stats.handler = summarize(counters.handler);
    all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace weft::rpc

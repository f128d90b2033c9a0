// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/serving/desk.h"

#include <new>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/room.h"
#include "rpc/agent_core.h"
#include "rpc/functions/function_table.h"
#include "rpc/serving/placement.h"
#include "rpc/serving/server.h"

namespace weft::rpc {

namespace {

// A caller that called so lately may call again at once.
constexpr auto kSoon = std::chrono::milliseconds(10);
constexpr auto kLongestInline = std::chrono::milliseconds(1);
constexpr int kReceivesPerTurn = 64;

// While a leader polls one link, it asks the poller in between: after so many polls, depending on
// whether there are other links and whether a poll costs a system call, as asking the poller does.
int polls_per_look(bool has_others, bool cheap) {
  return has_others ? (cheap ? 64 : 2) : (cheap ? 512 : 32);
}
constexpr int kPollsPerService = 16;  // that take as long as to serve a call

// The pulse takes the lead from user code that it finds at two ticks in a row.
constexpr auto kSlow = std::chrono::milliseconds(1);

}  // namespace

// What this thread does.
struct Desk::Role {
  Desk* leads = nullptr;
  bool in_user_code = false;
  bool without_lead = false;  // gives up the lead when user code begins
  // The replies of this link are sent together at the end of the batch.
  const ServingLink* batching = nullptr;
};

Desk::Role& Desk::role() {
  thread_local Role role;
  return role;
}

Desk::Desk(Server& server, Runtime& runtime, base::Crew& crew)
    : server_(server), runtime_(runtime), crew_(crew) {}

// --- links -----------------------------------------------------------------------------------

bool Desk::add(const detail::Ref<ServingLink>& link) {
  const base::MutexLock lock(mutex_);
  link->token = next_token_++;
  const auto entry = links_.emplace(link->token, link).first;
  bool is_watched = false;
  try {
    is_watched = poller_.add(link->link().connection(), transport::kReadable, link->token);
  } catch (const std::bad_alloc&) {
    // As if there were no descriptor.
  }
  if (!is_watched) links_.erase(entry);
  link_count_.store(links_.size(), std::memory_order_relaxed);
  return is_watched;
}

std::vector<detail::Ref<ServingLink>> Desk::take_all() {
  std::unordered_map<uint64_t, detail::Ref<ServingLink>> taken;
  {
    const base::MutexLock lock(mutex_);
    taken.swap(links_);
    link_count_.store(0, std::memory_order_relaxed);
  }
  std::vector<detail::Ref<ServingLink>> links;
  for (auto& [token, link] : taken) links.push_back(std::move(link));
  return links;
}

std::vector<detail::Ref<ServingLink>> Desk::links() const {
  std::vector<detail::Ref<ServingLink>> links;
  const base::MutexLock lock(mutex_);
  for (const auto& [token, link] : links_) links.push_back(link);
  return links;
}

detail::Ref<ServingLink> Desk::find(uint64_t token) const {
  const base::MutexLock lock(mutex_);
  auto found = links_.find(token);
  return found == links_.end() ? detail::Ref<ServingLink>() : found->second;
}

void Desk::watch(ServingLink& link, uint32_t interest) {
  poller_.change(link.link().connection(), interest, link.token);
}

void Desk::unwatch(ServingLink& link) { poller_.remove(link.link().connection(), link.token); }

void Desk::drop_as_bad(ServingLink& link, std::string_view why) {
  if (link.lost) return;
  runtime_.counters.bad_connections.add();
  base::log(LogLevel::kWarning, runtime_.name(), "closing the connection of {} from {}: {}",
            link.caller().name, link.link().connection().remote_address(), why);
  drop(link);
}

void Desk::drop(ServingLink& link) {
  if (std::exchange(link.lost, true)) return;
  link.stop_watching();
  link.link().close();
  link.cancel_all();
  if (hot_.get() == &link) hot_ = {};
  detail::Ref<ServingLink> last;  // destroyed outside the lock
  const base::MutexLock lock(mutex_);
  if (auto found = links_.find(link.token); found != links_.end()) {
    last = std::move(found->second);
    links_.erase(found);
  }
  link_count_.store(links_.size(), std::memory_order_relaxed);
}

// --- leading ---------------------------------------------------------------------------------

void Desk::lead() {
  while (!crew_.stopping()) {
    if (!take_turn_anyway()) return;
  }
}

// Links and calls end with what goes wrong with them. What is left is the lack of memory for the
// leader's own work, which is still there to be done when there is some again.
bool Desk::take_turn_anyway() {
  try {
    return take_turn();
  } catch (const std::exception& error) {
    if (!leads_after_throw()) return false;
    role() = {};  // a batch that was being served is still current_
    base::log(LogLevel::kError, runtime_.name(), "cannot serve for a moment: {}", error.what());
    std::this_thread::sleep_for(base::kMomentWithoutMemory);
    return true;
  }
}

bool Desk::take_turn() {
  // The previous leader lost the lead while it served a batch: this thread first sends that batch's
  // queued replies, then serves its remaining frames.
  if (current_) {
    current_->flush();
    if (!serve_frames(*current_)) return false;
    current_ = {};
  }
  if (hot_ && runtime_.spin.count() > 0) {
    const detail::Ref<ServingLink> hot = std::exchange(hot_, {});
    if (!spin_on(*hot)) return false;
  }
  // Leaders may have all slots: the backlog goes on all the same.
  return help_once() && wait_and_serve();
}

// Runs one call of the backlog if no other thread can: this one had better read.
bool Desk::help_once() {
  if (server_.waiting() == 0 || !crew_.needs_leaders_help() || !crew_.take_slot()) return true;
  running_function_.store(kNoFunction, std::memory_order_relaxed);
  Role& mine = role();
  mine = {};
  mine.leads = this;
  mine.in_user_code = true;
  crew_.enter_user_code();
  server_.run_one();
  mine = {};
  return crew_.leave_user_code();
}

// Sleeps until something comes, without a slot.
bool Desk::wait_and_serve() {
  crew_.give_slot();
  if (server_.waiting() > 0) {
    crew_.call_for_help();  // with the slot that this thread had
    if (crew_.needs_leaders_help() && crew_.take_slot()) return serve_events(base::Duration(0));
  }
  return serve_events(std::nullopt);
}

bool Desk::serve_events(std::optional<base::Duration> limit) {
  return serve_events(poller_.wait(limit));
}

bool Desk::serve_events(std::span<const transport::PollEvent> events) {
  for (const transport::PollEvent& event : events) {
    detail::Ref<ServingLink> link = find(event.token);
    if (!link) continue;
    // A paused link reports no bytes, but its end.
    if (event.writable || link->paused()) {
      const Link::State state = link->link().flush();
      link->update_interest();
      if (state == Link::State::kBroken) {
        drop(*link);
        continue;
      }
    }
    if (!serve_held_calls(*link)) return false;
    // When the lead is lost the events left here are reported again to the next leader.
    if (event.readable && !receive_and_serve(*link)) return false;
  }
  return true;
}

// Polls the link served last, for as long as the options say, before the thread sleeps. However
// busy this one is, the others are looked at, and the backlog: before all else, for calls may have
// come while functions ran.
bool Desk::spin_on(ServingLink& link) {
  const bool cheap = link.link().connection().polls_cheaply();
  const bool has_others = link_count() > 1;
  const int per_look = polls_per_look(has_others, cheap);
  int until_look = has_others ? 0 : per_look;
  spinner_.begin(runtime_.spin);
  for (;;) {
    if (link.lost || link.paused() || crew_.stopping()) return true;
    if (until_look <= 0) {
      until_look = per_look;
      if (!(serve_events(base::Duration(0)) && help_once())) return false;
    } else if (has_others && cheap && !serve_events(poller_.look())) {
      return false;
    }
    const uint64_t before = link.link().received_bytes();
    if (!receive_and_serve(link)) return false;
    if (link.link().received_bytes() != before) {
      until_look -= cheap ? kPollsPerService : 1;
      spinner_.begin(runtime_.spin);
    } else if (server_.waiting() > 0 || !spinner_.again()) {
      return true;
    } else {
      --until_look;
    }
  }
}

bool Desk::serve_held_calls(ServingLink& link) {
  if (!link.take_held_calls()) return true;
  current_ = detail::Ref<ServingLink>::share(&link);
  if (!serve_frames(link)) return false;
  current_ = {};
  return true;
}

bool Desk::receive_and_serve(ServingLink& link) {
  if (!link.lost && !serve_held_calls(link)) return false;
  if (link.paused() || link.lost || link.holds_calls()) return true;
  for (int i = 0; i < kReceivesPerTurn; ++i) {
    switch (link.link().receive()) {
      case Link::State::kBlocked:
        return true;
      case Link::State::kBroken:
        drop(link);
        return true;
      case Link::State::kFine:
        spinner_.came();
        break;
    }
    current_ = detail::Ref<ServingLink>::share(&link);
    if (!serve_frames(link)) return false;
    current_ = {};
    if (link.lost || link.paused() || link.holds_calls() || !link.link().within_frame()) break;
  }
  if (std::exchange(may_call_again_, false) && !link.lost && runtime_.spin.count() > 0)
    hot_ = detail::Ref<ServingLink>::share(&link);
  return true;
}

bool Desk::serve_frames(ServingLink& link) {
  // While user code runs here, the crew may end and with it what the desk has in hand.
  const auto kept = detail::Ref<ServingLink>::share(&link);
  Role& mine = role();
  mine = {};
  mine.leads = this;
  mine.batching = &link;
  inline_since_ = base::Time();
  try {
    while (!link.lost && !crew_.stopping() && link.takes_next_call() && link.link().next_frame()) {
      const wire::FrameHeader& header = link.link().frame().header;
      if (link.said_goodbye) {
        Decoder::fail(
            fmt::format("a frame of kind {} after goodbye", static_cast<int>(header.kind)));
      }
      switch (header.kind) {
        case wire::FrameKind::kCall:
          if (!serve_call(link)) return false;
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
    if (!drop_after_throw(link, error.message())) return false;
  } catch (const std::exception& error) {  // no memory
    if (!drop_after_throw(link, error.what())) return false;
  }
  mine = {};
  // Also if it is paused: the thread that wrote the last reply may have taken it for a queued one.
  if (!link.lost && (link.link().has_queued() || link.paused())) link.flush();
  return true;
}

// What was thrown may have left user code, and with that the lead may be lost: then the link is
// left to the next leader, who finds it closed.
bool Desk::drop_after_throw(ServingLink& link, std::string_view why) {
  const bool leads = leads_after_throw();
  if (leads) {
    drop_as_bad(link, why);
  } else {
    link.link().close();
    role() = {};
  }
  return leads;
}

bool Desk::leads_after_throw() {
  return !std::exchange(role().in_user_code, false) || crew_.leave_user_code();
}

bool Desk::serve_call(ServingLink& link) {
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
  const base::Time now = runtime_.clock->now();
  may_call_again_ = now - std::exchange(link.last_call, now) < kSoon;
  auto call = detail::make_ref<IncomingCall>(server_, detail::Ref<ServingLink>::share(&link),
                                             frame.header.id, *function.entry, prelude, now);
  const bool reserved = is_reserved(*function.entry);
  if (!reserved) runtime_.counters.serving.begin();
  if (link.take_early_cancel(frame.header.id)) {
    call->cancel();
    runtime_.counters.cancelled_unstarted.add();
    call->refuse(ErrorCode::kCancelled, "given up by the caller before it arrived");
    return true;
  }
  if (prelude.depth > runtime_.options.max_call_depth) {
    call->refuse(ErrorCode::kLimitExceeded,
                 fmt::format("calls nest {} deep; the limit is {}", prelude.depth,
                             runtime_.options.max_call_depth));
    return true;
  }
  // Weft's own calls need no thread of their own: leases and verdicts must not depend on whether
  // users' functions block.
  if (!reserved && crew_.out_of_threads() && crew_.idle() == 0) {
    call->refuse(ErrorCode::kLimitExceeded,
                 fmt::format("all {} handler threads are in use", crew_.threads()));
    return true;
  }
  if (!prelude.note.empty() && !set_companion_from(*call, prelude.note, frame.tensors)) return true;
  if (!reserved && (link.has_line() || arguments.size() > kLongDecode)) {
    call->park(link.link().decoder().take_body(), arguments, std::move(frame.tensors));
    if (link.stand_in_line(call)) server_.add_to_backlog(std::move(call));
    return true;
  }
  if (reserved) return serve(*call, frame, arguments, Placement::kHere);
  const base::Duration usual = server_.statistics().usual(function.entry->index);
  if (needs_slot(usual) && !crew_.take_slot())
    return serve(*call, frame, arguments, Placement::kElsewhere);
  const base::Duration worth = worth_another_thread(runtime_.cpus, function.entry->makes);
  return serve(*call, frame, arguments, place(usual, worth, others_of(link, usual, worth)));
}

// False: it was refused.
bool Desk::set_companion_from(IncomingCall& call, std::span<const std::byte> note,
                              std::span<at::Tensor> tensors) {
  try {
    call.set_companion(server_.agent().on_note(call.caller(), note, tensors));
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kBadMessage) throw;
    call.refuse(error.code(), error.message());
    return false;
  }
}

// What may wait behind the call in hand, of this desk's connections. Asked only as far as it
// matters.
Others Desk::others_of(ServingLink& link, base::Duration usual, base::Duration worth) {
  if (usual < worth) return {};
  const size_t running = crew_.running();
  Others others{link.link().within_frame(), link.working_calls() > 1,
                running < crew_.limit() || !has_time_inline()};
  const bool matters = others.have_slots || usual >= kWorthAHandOver;
  if (matters && !others.have_come && worth_a_look(usual, running, runtime_.cpus))
    others.have_come = poller_.has_events();
  return others;
}

// Where no other thread has a slot, this one runs the calls of a batch itself, but not for so long
// that the desk's other connections notice.
bool Desk::has_time_inline() {
  const base::Time now = std::chrono::steady_clock::now();
  if (inline_since_ == base::Time()) inline_since_ = now;
  return now - inline_since_ < kLongestInline;
}

bool Desk::serve(IncomingCall& call, wire::Frame& frame, std::span<const std::byte> arguments,
                 Placement placement) {
  if (placement == Placement::kElsewhere) {
    call.run_later(arguments, frame.tensors);
    return true;
  }
  Role& mine = role();
  detail::Ref<ServingLink> link = current_;
  mine.without_lead = placement == Placement::kHereWithoutLead;
  // A reply that no other can join goes out before this thread tidies up after the call.
  mine.batching = link->link().within_frame() && !mine.without_lead ? link.get() : nullptr;
  call.run(arguments, frame.tensors);
  mine.without_lead = false;
  // A call that waits for something may be in user code by now, but not on this thread.
  if (!std::exchange(mine.in_user_code, false) || crew_.leave_user_code()) return true;
  mine = {};
  link->flush();  // the reply was left for the leader, which this thread no longer is
  return false;
}

void Desk::on_user_code(const IncomingCall& call) {
  Role& mine = role();
  if (!mine.leads) return;
  base::Crew& crew = mine.leads->crew_;
  const bool of_backlog = std::exchange(mine.in_user_code, true);
  if (of_backlog && !crew.still_leads()) return;
  mine.leads->running_function_.store(call.function().index, std::memory_order_relaxed);
  if (of_backlog) return;
  crew.enter_user_code(/*rare=*/is_reserved(call.function()));
  if (mine.without_lead) crew.give_up_lead();
}

void Desk::on_slow_user_code() {
  const uint32_t function = running_function_.load(std::memory_order_relaxed);
  if (function != kNoFunction) server_.statistics().takes_more_than(function, kSlow);
}

void Desk::on_end() {
  current_ = {};
  hot_ = {};
}

// Only while this thread leads: a thread that took the lead has flushed, and does not flush for
// this thread again.
bool Desk::flushes_later(const ServingLink& link) {
  const Role& mine = role();
  return mine.batching == &link && mine.leads->crew_.still_leads();
}

}  // namespace weft::rpc

// CallingLink: waiting, receiving replies, and which thread does it.
// SPDX-License-Identifier: BSD-3-Clause
#include <cxxabi.h>

#include <algorithm>
#include <exception>
#include <new>
#include <typeinfo>
#include <utility>

#include <fmt/format.h>

#include "base/demangle.h"
#include "base/error_without_memory.h"
#include "base/log.h"
#include "rpc/calling/calling_link.h"
#include "rpc/functions/function_table.h"
#include "transport/poller.h"
#include "wire/call_prelude.h"

namespace weft::rpc {

namespace {

using Access = OutgoingCallAccess;

// Fewer bytes of an unfinished frame are no sign of life: they may be pongs that are taken for the
// body of a frame that claims more bytes than it has.
constexpr uint64_t kBytesOfLife = 16 << 10;

}  // namespace

bool CallingLink::wait_for(Call& call, std::optional<base::Time> until) {
  detail::FutureCore& future = call.future();
  const bool own_clock = runtime_->clock->runs_by_itself();
  std::optional<detail::BlockingRegion> region;
  base::Spinner spinner;
  bool is_being_settled = false;  // by the thread that has taken the call out of the table
  while (!future.ready()) {
    const bool has_deadline = own_clock && !Access::is_left_to_continuation(call);
    const base::Time limit = std::min(until.value_or(base::Time::max()),
                                      has_deadline ? Access::deadline(call) : base::Time::max());
    if (!region) region.emplace();
    if (is_being_settled) {
      Access::mark_sleeper(call);
      Access::sleep(call, until);
    } else if (!receive_for(call, limit, spinner)) {
      Access::sleep(call, limit == base::Time::max() ? std::nullopt : std::optional(limit));
      leave_line(call);
      if (future.ready()) spinner.came();
    }
    if (future.ready()) break;
    const base::Time now = runtime_->clock->now();
    if (!is_being_settled && now >= Access::deadline(call) &&
        !Access::is_left_to_continuation(call)) {
      is_being_settled = !expire(call);
    } else if (until && std::chrono::steady_clock::now() >= *until) {
      return false;
    }
  }
  return true;
}

// False: another thread receives, and this one stands in line.
bool CallingLink::receive_for(Call& call, base::Time limit, base::Spinner& spinner) {
  spinner.begin(runtime_->spin, limit);
  for (bool time_left = runtime_->spin.count() > 0;;) {
    Lock lock(mutex_);
    if (call.future().ready()) return true;
    const bool concerned = state_ == State::kConnected && !Access::is_left_to_continuation(call);
    if (concerned && reception_.may_begin()) {
      receive_as_caller(limit, &call);
      return true;
    }
    if (!concerned || !time_left) {
      enter_line(call);
      const detail::Ref<Link> link = link_to_flush();
      lock.unlock();
      if (link) flush(link);
      return false;
    }
    const detail::Ref<Link> link =
        reception_.sends_before_lingering() ? link_to_flush() : detail::Ref<Link>();
    lock.unlock();
    if (link) flush(link);
    time_left = linger(call, spinner);
    if (call.future().ready()) {
      spinner.came();
      return true;
    }
  }
}

// Another thread receives, and the reply may be near: this thread yields the CPU, but is awake when
// the reply comes or when nobody receives any more. To sleep and be woken would cost more. False:
// the time for that is over.
bool CallingLink::linger(Call& call, base::Spinner& spinner) {
  reception_view_.begin_lingering();
  bool time_left;
  do {
    spinner.set_brief(reception_view_.is_crowded());
    time_left = spinner.again();
  } while (time_left && !call.future().ready() && reception_view_.receiver() != Receiver::kNobody);
  reception_view_.end_lingering();
  return time_left;
}

void CallingLink::receive_as_caller(base::Time limit, const Call* call) {
  const Term term = reception_.begin(runtime_->spin.count() > 0);
  detail::Ref<Link> link = link_;
  try {
    const base::Unlocked unlocked(mutex_);
    send_for_others(link);
    receive_until(link, term, limit, call);
  } catch (...) {  // no memory
    pass_on_receiving(term);
    let_go(std::move(link));
    throw;
  }
  pass_on_receiving(term);
  if (!link->has_deferred()) return let_go(std::move(link));
  const base::Unlocked unlocked(mutex_);
  const detail::Ref<Link> its = std::move(link);  // see let_go()
  send_for_others(its);
}

// Lets go of the lock for the last reference to a link that was lost meanwhile: with the link go
// tensors of users, whose deleters may make calls.
void CallingLink::let_go(detail::Ref<Link> link) {
  if (link_.get() == link.get()) return;
  const base::Unlocked unlocked(mutex_);
  link = {};
}

// Writes the frames that other callers have left to the caller that receives. If they are too many,
// the caller that queued the last of them writes all, or the loop does.
void CallingLink::send_for_others(const detail::Ref<Link>& link) {
  if (!link->has_deferred()) return;
  constexpr size_t kEnough = Reception<Call>::kEnoughToSend;
  if (link->unsent_bytes() < kEnough && !link->blocked()) flush(link, kEnough);
}

// Called by the caller that receives. While it sleeps, other callers leave no frames to it.
void CallingLink::set_polling(const detail::Ref<Link>& link, Term term, bool polling) {
  {
    Lock lock(mutex_);
    if (!reception_.set_polling(term, polling)) return;
  }
  if (!polling) send_for_others(link);
}

// Under the lock: the link, if deferred frames must be sent now because somebody wants replies.
detail::Ref<Link> CallingLink::link_to_flush() const {
  const bool is_due = link_ && link_->has_deferred() && reception_.sends_before_sleeping();
  return is_due ? link_ : detail::Ref<Link>();
}

// Under the lock: a nudge from now on is not lost.
void CallingLink::enter_line(Call& call) {
  counters_.handovers.add();
  reception_.enter_line(call);
  Access::in_line(call).fetch_add(1, std::memory_order_relaxed);
  Access::mark_sleeper(call);
}

// A caller that is woken by its reply was taken out of the line by the thread that received it, so
// the two do not contend for the lock.
void CallingLink::leave_line(Call& call) {
  if (Access::in_line(call).load(std::memory_order_acquire) == 0) return;
  Lock lock(mutex_);
  if (reception_.leave_line(call)) Access::in_line(call).fetch_sub(1, std::memory_order_relaxed);
}

// Receives until `call` is settled (any call, if null), the link breaks or `limit` passed.
void CallingLink::receive_until(const detail::Ref<Link>& link, Term term, base::Time limit,
                                const Call* call) {
  using SteadyClock = std::chrono::steady_clock;
  detail::FutureCore* future = call ? &const_cast<Call*>(call)->future() : nullptr;
  base::Spinner& spinner = link->spinner();
  spinner.begin(runtime_->spin, limit);
  const bool polls = runtime_->spin.count() > 0;
  bool try_first = polls;
  bool polling = polls;  // what others know
  bool waits = false;    // one system call instead of two, where its coarse limit does not matter
  for (;;) {
    if (try_first || waits) {
      send_for_others(link);
      switch (std::exchange(waits, false) ? link->wait_and_receive() : link->receive()) {
        case Link::State::kFine:
          spinner.came();
          take_frames(link);
          if (!future || future->ready() || SteadyClock::now() >= limit) return;
          if (Access::is_left_to_continuation(*call)) return;
          try_first = true;
          spinner.begin(runtime_->spin, limit);
          if (polls && !polling) set_polling(link, term, polling = true);
          continue;
        case Link::State::kBroken:
          on_broken(link);
          return;
        case Link::State::kBlocked:
          break;
      }
      if (future && future->ready()) return;
      try_first = spinner.again(reception_view_.is_crowded());
      if (try_first) continue;
      if (polling) set_polling(link, term, polling = false);
    }
    const base::Duration left = limit - SteadyClock::now();
    if (left.count() <= 0) return;
    if (!link->blocked() && left > transport::kLongestReceive) {
      waits = true;
      continue;
    }
    const uint32_t what =
        transport::kReadable | (link->blocked() ? transport::kWritable : transport::kNothing);
    const transport::Readiness ready =
        link->connection().wait(what, std::min<base::Duration>(left, transport::kLongestReceive));
    if (ready.writable && link->blocked()) flush(link);
    try_first = ready.readable;
    if (future && future->ready()) return;
  }
}

bool CallingLink::receive_once(const detail::Ref<Link>& link) {
  switch (link->receive()) {
    case Link::State::kFine:
      take_frames(link);
      return true;
    case Link::State::kBlocked:
      return false;
    case Link::State::kBroken:
      on_broken(link);
      return false;
  }
  return false;
}

void CallingLink::note_received(const Link& link, bool whole_frame) {
  const base::Time now = runtime_->clock->now();
  const uint64_t bytes = link.received_bytes();
  Lock lock(mutex_);
  last_received_ = now;
  reception_.on_received();
  if (!whole_frame && bytes - bytes_at_life_ < kBytesOfLife) return;
  bytes_at_life_ = bytes;
  heartbeat_.on_received(now);
}

void CallingLink::take_frames(const detail::Ref<Link>& link) {
  try {
    bool more = link->next_frame();
    note_received(*link, more);
    for (; more; more = link->next_frame()) {
      wire::Frame& frame = link->frame();
      switch (frame.header.kind) {
        case wire::FrameKind::kReply:
          on_reply(frame);
          break;
        case wire::FrameKind::kPong:
          break;
        case wire::FrameKind::kHello:
          if (!on_hello(link, frame)) return;
          break;
        case wire::FrameKind::kGoodbye:
          on_link_lost(link, Error(ErrorCode::kUnavailable,
                                   std::string(reinterpret_cast<const char*>(frame.body.data()),
                                               frame.body.size())));
          return;
        default:
          throw Error(ErrorCode::kBadMessage, fmt::format("a frame of kind {} in a reply stream",
                                                          static_cast<int>(frame.header.kind)));
      }
    }
  } catch (const Error& error) {
    base::log(LogLevel::kWarning, runtime_->name(), "closing the connection to {}: {}",
              member_.info.name, error.message());
    runtime_->counters.bad_connections.add();
    lose(link, base::error_by(ErrorCode::kOutcomeUnknown, [&error] {
           return Error(ErrorCode::kOutcomeUnknown, error.message());
         }));
  } catch (const std::exception& error) {  // no memory, which libtorch says in its own way
    lose(link, base::error_by(ErrorCode::kOutcomeUnknown, [&error] {
           return Error(ErrorCode::kOutcomeUnknown,
                        fmt::format("there is no memory for a reply: {}", error.what()));
         }));
  }
}

void CallingLink::on_reply(wire::Frame& frame) {
  Call* call;
  base::Time received;
  {
    Lock lock(mutex_);
    call = calls_.take(frame.header.id);
    if (call) forget(*call);
    received = last_received_;
  }
  if (!call) {
    runtime_->counters.late_replies.add();
    return;
  }
  counters_.round_trip.record((received - Access::started(*call)).count());
  settle_reply(*call, frame);
}

void CallingLink::settle_reply(Call& call, wire::Frame& frame) {
  detail::FutureCore& future = call.future();
  try {
    std::span<const std::byte> body = frame.body;
    std::span<const std::byte> note;
    if (frame.header.flags & wire::kNoted) note = wire::read_note(body);
    // A call that was refused has nobody to accompany its reply.
    const bool refused = (frame.header.flags & wire::kFailed) && note.empty();
    if (const auto& companion = Access::companion(call); companion && !refused) {
      companion->on_reply(member_.info, note, frame.tensors);
    }
    if (frame.header.flags & wire::kFailed) {
      const wire::FailedReply failed = wire::decode_failed(body);
      settle_refused(
          call, failed.code == ErrorCode::kRemoteError
                    ? Error::remote(member_.info.name, failed.type, failed.text)
                    : Error(failed.code, fmt::format("{} on {}: {}", Access::function(call)->name,
                                                     member_.info.name, failed.text)));
    } else {
      detail::Arrival arrival(runtime_->agent, member_.info, detail::Arrival::Kind::kReply);
      Decoder result(body, frame.tensors, &arrival);
      call.settle_with(result, &runtime_->io);
    }
  } catch (const std::bad_alloc&) {
    settle_refused(call, base::error_by(ErrorCode::kOutcomeUnknown, [&] {
                     return Error(ErrorCode::kLimitExceeded,
                                  fmt::format("there is no memory for the result of {} on {}",
                                              Access::function(call)->name, member_.info.name))
                         .after_sending();
                   }));
  } catch (const std::exception& error) {
    const auto* typed = dynamic_cast<const Error*>(&error);
    settle_refused(
        call, base::error_by(ErrorCode::kOutcomeUnknown, [&] {
          return Error(typed ? typed->code() : ErrorCode::kBadMessage,
                       fmt::format("the result of {} on {} does not decode: {}",
                                   Access::function(call)->name, member_.info.name, error.what()))
              .after_sending();
        }));
  } catch (const abi::__forced_unwind&) {
    throw;  // the thread is being cancelled; swallowing that would abort the process
  } catch (...) {
    settle_refused(call, base::error_by(ErrorCode::kBadMessage, [&] {
                     const std::type_info* type = abi::__cxa_current_exception_type();
                     return Error(
                         ErrorCode::kBadMessage,
                         fmt::format("the result of {} on {} does not decode: {} was thrown, which "
                                     "is no std::exception",
                                     Access::function(call)->name, member_.info.name,
                                     type ? base::demangle(*type) : "a value of unknown type"));
                   }));
  }
  note_settled(call);
  future.release();  // the table's
}

// Counted down after continuations were posted: at no time does a chain of calls look finished.
void CallingLink::note_settled(Call& call) {
  Access::kept(call).clear();
  Access::companion(call) = {};
  if (!is_reserved(*Access::function(call))) runtime_->counters.outstanding.end();
}

void CallingLink::pass_on_receiving(Term term) {
  using Kind = Reception<Call>::Successor::Kind;
  const auto successor = reception_.end(term, [](Call& call) {
    return call.future().ready() || Access::is_left_to_continuation(call);
  });
  if (successor.kind == Kind::kCaller || successor.kind == Kind::kLoop) counters_.handovers.add();
  switch (successor.kind) {
    case Kind::kNone:
      return;
    case Kind::kCaller:
      Access::nudge(*successor.waiter);
      break;
    case Kind::kLoop:
      return update_interest();
    case Kind::kPulse:
      break;
  }
  if (!want_ticks()) let_loop_receive();  // which needs no ticks
}

bool CallingLink::want_ticks() noexcept {
  try {
    runtime_->ticking.add(*this);
  } catch (const std::bad_alloc&) {
    return false;
  }
  runtime_->pulse.touch();
  return true;
}

void CallingLink::let_loop_receive() {
  if (reception_.call_loop()) update_interest();
}

// Not called when a caller takes over from the loop: the loop notices at its next event, which
// costs the caller nothing.
void CallingLink::update_interest() {
  uint32_t wanted = transport::kNothing;
  if (reception_.receiver() == Receiver::kLoop) wanted |= transport::kReadable;
  if (!stream_up_ || link_->blocked()) wanted |= transport::kWritable;
  if (std::exchange(interest_, wanted) != wanted) {
    runtime_->io.watch(link_->connection(), wanted, token_);
  }
}

// The call has been started: it is not made anew.
void CallingLink::ask_for_receiver(Call& call) {
  Lock lock(mutex_);
  if (!calls_.contains(Access::id(call))) return;  // its reply is being handed out
  if (!std::exchange(Access::listened_to(call), true)) reception_.add_listener();
  let_loop_receive();
  const detail::Ref<Link> link = link_to_flush();
  lock.unlock();
  if (link) flush(link);
}

// Looks after a connection on which no thread receives, frames that wait to be sent together, and
// callers that have just begun to sleep.
bool CallingLink::on_tick() {
  Lock lock(mutex_);
  const detail::Ref<Link> link = state_ == State::kConnected ? link_ : detail::Ref<Link>();
  const bool has_deferred = link && link->has_deferred();
  const auto tick = reception_.on_tick(!calls_.empty(), has_deferred);
  if (tick.loop_begins) update_interest();
  lock.unlock();
  if (has_deferred) flush(link);
  return tick.goes_on;
}

}  // namespace weft::rpc

// CallingLink: how calls and connections end other than by a reply.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/error_without_memory.h"
#include "rpc/calling/calling_link.h"

namespace weft::rpc {

namespace {

using Access = OutgoingCallAccess;

}  // namespace

bool CallingLink::was_sent(Call& call, const Link* link) const {
  return link && link->may_have_sent(Access::ends_at(call));
}

SignOfLife CallingLink::sign_of_failed_connecting(const Error& error) {
  return dynamic_cast<const transport::Refused*>(&error) ? SignOfLife::kRefused
                                                         : SignOfLife::kUnreachable;
}

void CallingLink::on_link_lost(const detail::Ref<Link>& link, const Error& why, SignOfLife sign) {
  Lock lock(mutex_);
  if (link_.get() != link.get() || state_ == State::kClosed) return;
  // First what needs memory: nothing has changed yet if there is none.
  std::vector<Call*> calls;
  calls.reserve(calls_.size());
  std::string reason = why.message();
  const bool was_connected = state_ == State::kConnected;
  const base::Time now = runtime_->clock->now();
  // Before the calls are settled: those who made them act on the verdict.
  if (was_connected) {
    sign = why.code() == ErrorCode::kPeerLost ? SignOfLife::kSilent : SignOfLife::kEnded;
    runtime_->liveness.on_sign(member_.info.id, sign, now, why.message());
  } else if (!link->broken() || !runtime_->transport->takes_other_way(
                                    member_.address, link->connection(), why.message())) {
    if (sign == SignOfLife::kSilent) sign = SignOfLife::kUnreachable;  // nobody was heard at all
    runtime_->liveness.on_sign(member_.info.id, sign, connect_began_, why.message());
    backoff_.on_failure(now);
  }
  drop_link();
  set_state(State::kIdle);
  connect_by_ = base::Time::max();
  last_failure_ = std::move(reason);
  calls_.take_all(calls);
  for (Call* call : calls) forget(*call);
  if (was_connected) {
    std::erase_if(calls, [&](Call* call) {
      if (!Access::ask_to_make_anew(*call)) return false;
      call->future().release();  // the table's; its maker has another
      return true;
    });
  }
  lock.unlock();
  settle_lost(std::move(calls), *link, why, was_connected);
}

void CallingLink::on_broken(const detail::Ref<Link>& link) {
  lose(link, base::error_by(ErrorCode::kOutcomeUnknown, [&link] {
         return Error(ErrorCode::kOutcomeUnknown, link->why_broken());
       }));
}

void CallingLink::lose_without_ticks(const detail::Ref<Link>& link) {
  if (!link) return;
  lose(link, base::error_by(ErrorCode::kOutcomeUnknown, [] {
         return Error(ErrorCode::kOutcomeUnknown,
                      "there is no memory for what would look after the connection");
       }));
}

// For a link that must not be used any more, whether or not there is memory for its end.
void CallingLink::lose(const detail::Ref<Link>& link, const Error& why) {
  try {
    on_link_lost(link, why);
  } catch (const std::bad_alloc&) {
    link->close();  // the thread that receives finds it closed
  }
}

void CallingLink::drop_link() {
  const detail::Ref<Link> link = std::exchange(link_, {});
  runtime_->io.unwatch(link->connection(), token_);
  link->close();
  counters_.bytes_sent += link->sent_bytes();
  counters_.bytes_received += link->received_bytes();
  // The caller that receives on the lost link notices by itself; the role is free for the next
  // link.
  reception_.on_lost();
}

void CallingLink::settle_lost(std::vector<Call*> calls, const Link& link, const Error& why,
                              bool was_connected) {
  for (Call* call : calls) {
    const std::string& function = Access::function(*call)->name;
    const std::string& name = member_.info.name;
    // A frame that did not leave completely cannot have run.
    const bool sent = was_connected && was_sent(*call, &link);
    if (sent) {
      const ErrorCode code =
          why.code() == ErrorCode::kPeerLost ? ErrorCode::kPeerLost : ErrorCode::kOutcomeUnknown;
      fail(*call, base::error_by(code, [&] {
        return Error(code, fmt::format("{} was sent to {}, then the connection broke: {}", function,
                                       name, why.message()));
      }));
    } else {
      const ErrorCode code = why.code() == ErrorCode::kUnauthenticated ? ErrorCode::kUnauthenticated
                                                                       : ErrorCode::kUnavailable;
      fail(*call, base::error_by(code, [&] {
        return Error(code, fmt::format("{} was not sent to {} at {}: {}", function, name,
                                       member_.address, why.message()));
      }));
    }
    call->future().release();  // the table's
  }
}

void CallingLink::fail(Call& call, const Error& error) {
  counters_.failed.add();
  call.on_failed(error);
  std::optional<Error> final_error = error;
  try {
    final_error = call.translate(error);
  } catch (const std::exception&) {
    // There is no memory, or the agent ends: the error as it is.
  }
  if (final_error) call.future().settle_error(*final_error, &runtime_->io);
  note_settled(call);
}

// The callee answered with an error, or its answer does not decode.
void CallingLink::settle_refused(Call& call, const Error& error) {
  if (call.future().ready()) return;  // what lacks memory is only what comes after the result
  counters_.failed.add();
  call.on_failed(error);
  call.future().settle_error(error, &runtime_->io);
}

void CallingLink::give_room_back(Call& call) {
  const uint32_t depth = Access::depth(call);
  window_.close(depth, Access::bytes(call));
  shared_window_->close(depth, Access::bytes(call), window_.has_ample_room(depth));
}

// Under the lock: frees the place of a call that was taken out of the table in the window, in the
// line and among the calls that are listened to.
void CallingLink::forget(Call& call) {
  give_room_back(call);
  if (Access::in_line(call).load(std::memory_order_relaxed) > 0) {
    reception_.clear_line_of(call);
    Access::in_line(call).store(0, std::memory_order_release);
  }
  if (std::exchange(Access::listened_to(call), false)) reception_.remove_listener();
}

Error CallingLink::timeout_error(Call& call, bool queued) {
  const auto limit =
      std::chrono::ceil<std::chrono::milliseconds>(Access::deadline(call) - Access::started(call));
  const Error error(ErrorCode::kTimeout,
                    fmt::format("{} on {}: no reply within {} ms{}", Access::function(call)->name,
                                member_.info.name, limit.count(),
                                queued ? "" : "; the call waited for room and was not sent"));
  return queued ? error : error.before_sending();
}

// False: another thread has taken the call out of the table, and settles it.
bool CallingLink::expire(Call& call) {
  Lock lock(mutex_);
  if (calls_.take(Access::id(call)) == nullptr) return false;
  forget(call);
  lock.unlock();
  settle_expired(call);
  return true;
}

// The callee is told, so that it need not start, or can stop, what nobody waits for.
void CallingLink::settle_expired(Call& call) {
  runtime_->counters.timeouts.add();
  const uint64_t id = Access::id(call);
  fail(call,
       base::error_by(ErrorCode::kTimeout, [&] { return timeout_error(call, /*queued=*/true); }));
  call.future().release();  // the table's
  send_cancel(id);
}

void CallingLink::send_cancel(uint64_t call_id) {
  Lock lock(mutex_);
  if (!link_) return;
  const detail::Ref<Link> link = link_;
  wire::FrameHeader header{wire::FrameKind::kCancel};
  header.id = call_id;
  try {
    // The cancel may overtake its call; the callee then does not begin the call.
    link->queue(header, link->lane_for_urgent());
    const bool connected = state_ == State::kConnected;
    lock.unlock();
    if (connected) flush(link);
  } catch (const std::bad_alloc&) {
    // A part of the frame may be queued. The thread that receives finds the connection closed.
    link->close();
  }
}

void CallingLink::cancel(Call& call) { cancel(Access::id(call)); }

void CallingLink::cancel(uint64_t call_id) {
  Lock lock(mutex_);
  Call* call = calls_.take(call_id);
  if (!call) return;
  forget(*call);
  lock.unlock();
  fail(*call, base::error_by(ErrorCode::kCancelled, [&] {
    return Error(
        ErrorCode::kCancelled,
        fmt::format("{} on {} was cancelled", Access::function(*call)->name, member_.info.name));
  }));
  call->future().release();  // the table's
  send_cancel(call_id);
}

bool CallingLink::is_pending(uint64_t call_id) {
  Lock lock(mutex_);
  return calls_.contains(call_id);
}

void CallingLink::close(const Error& why) {
  Lock lock(mutex_);
  if (state_ == State::kClosed) return;
  // First what needs memory: nothing has changed yet if there is none.
  std::vector<Call*> calls;
  calls.reserve(calls_.size());
  const Error why_of_sent = why.after_sending();
  set_state(State::kClosed);
  closed_because_ = why;
  calls_.take_all(calls);
  for (Call* call : calls) forget(*call);
  const detail::Ref<Link> link = link_;
  if (link) {
    drop_link();
  } else {
    reception_.on_lost();
  }
  shared_window_->notify();
  lock.unlock();
  runtime_->io.remove(token_);
  for (Call* call : calls) {
    fail(*call, was_sent(*call, link.get()) ? why_of_sent : why);
    call->future().release();  // the table's
  }
}

}  // namespace weft::rpc

// Peer: making calls, connecting, writing.
// SPDX-License-Identifier: BSD-3-Clause
#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "rpc/calling/peer.h"
#include "rpc/functions/function_table.h"
#include "transport/poller.h"
#include "wire/call_prelude.h"
#include "wire/hello.h"

namespace weft::rpc {

namespace {

using Access = OutgoingCallAccess;
using transport::Poller;

constexpr auto kConnectTimeout = std::chrono::seconds(5);
constexpr size_t kSentAtOnce = 8;  // calls unanswered below which each is sent at once
constexpr auto kQuietLink = std::chrono::milliseconds(1);
// For the outcome of another thread's write, which does not block.
constexpr int kYields = 1000;
constexpr auto kLongestWrite = std::chrono::seconds(1);

uint64_t remaining_us(base::Time deadline, base::Time now) {
  if (deadline == base::Time::max()) return 0;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
  return left > 0 ? static_cast<uint64_t>(left) : 1;
}

}  // namespace

void Peer::start(Call& call, const detail::FunctionEntry& function, const Encoder& arguments,
                 const CallLimits& limits) {
  Access::peer(call) = detail::Ref<Peer>::share(this);
  Access::function(call) = &function;
  Access::deadline(call) = limits.deadline;
  Access::depth(call) = limits.depth;
  Access::bytes(call) = arguments.payload().size() + arguments.tensor_bytes();
  if (!arguments.kept().empty()) Access::kept(call) = arguments.kept();
  counters_.calls.add();
  if (!is_reserved(function)) runtime_->counters.outstanding.begin();

  if (send(call, function, arguments, limits)) return;
  // The connection broke before the call's frame had left completely, so the callee cannot have run
  // it: this thread sends it once more, on a new connection.
  Access::never_anew(call);
  send(call, function, arguments, limits);
}

// False: the connection broke before the whole frame had left; the call is not settled.
bool Peer::send(Call& call, const detail::FunctionEntry& function, const Encoder& arguments,
                const CallLimits& limits) {
  Lock lock(mutex_);
  Access::started(call) = runtime_->clock->now();
  if (state_ == State::kClosed) {
    lock.unlock();
    fail(call, *closed_because_);
    return true;
  }
  // Weft's own calls do not wait for room: leases and liveness must not depend on users' calls.
  if (!is_reserved(function) && !has_room(limits, Access::bytes(call)) &&
      !wait_for_room(lock, limits, Access::bytes(call))) {
    const std::optional<Error> closed = state_ == State::kClosed ? closed_because_ : std::nullopt;
    lock.unlock();
    fail(call, closed ? *closed : timeout_error(call, /*queued=*/false));
    return true;
  }
  try {
    // With no call unanswered, the loop hardly receives a reply: more likely the connection ends.
    const bool doubtful =
        Access::started(call) - last_received_ > kQuietLink || (loop_receiving_ && calls_.empty());
    if (state_ == State::kConnected && doubtful) notice_dead_link(lock);
    if (state_ == State::kClosed) throw *closed_because_;
    if (state_ == State::kIdle) connect();
  } catch (const Error& error) {
    lock.unlock();
    fail(call, Error(error.code(), fmt::format("{} was not sent to {}: {}", function.name,
                                               member_.info.name, error.message())));
    return true;
  }
  queue_call(call, function, arguments, limits);
  const bool defer = should_defer(limits);
  const detail::Ref<Link> link = link_;
  const bool connected = state_ == State::kConnected;
  const bool expires_soon = calls_.earliest_deadline() == limits.deadline;
  const bool alone = calls_.size() == 1;
  if (defer) link->defer_flush();
  if (!connected || defer) Access::never_anew(call);
  lock.unlock();

  runtime_->pulse.touch();
  if (expires_soon) update_due();
  if (connected && !defer) {
    flush(link);
    if (alone && !link->has_sent(Access::ends_at(call))) {
      wait_for_other_writer(call, *link);
      if (link->broken()) flush(link);  // which finds out, if nobody has
    }
  }
  return Access::finish_starting(call) || settle_if_sent(call, *link);
}

// The first call after a pause: if the loop is writing it, the link has just become readable or
// writable, perhaps by breaking. It is worth a moment to see the outcome of that write, which takes
// long only if the writing thread has no CPU.
void Peer::wait_for_other_writer(Call& call, const Link& link) {
  const auto limit = std::chrono::steady_clock::now() + kLongestWrite;
  for (int i = 0; !link.has_sent(Access::ends_at(call)) && !link.blocked() && !link.broken(); ++i) {
    if (i < kYields) {
      sched_yield();
    } else if (std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else {
      return;
    }
  }
}

// The link broke while the call was being sent. Whether the whole frame left is known once no
// thread writes any more.
bool Peer::settle_if_sent(Call& call, const Link& link) {
  while (link.is_offering()) sched_yield();
  if (!was_sent(call, &link)) return false;
  fail(call,
       Error(ErrorCode::kOutcomeUnknown,
             fmt::format("{} was sent to {}, then the connection broke: {}",
                         Access::function(call)->name, member_.info.name, link.why_broken())));
  return true;
}

bool Peer::should_defer(const CallLimits& limits) const {
  // The loop is handing out replies; it sends the next calls of the answered callers together.
  // Unless there are no others: then the loop may just as well be finding out that the link broke.
  if (loop_receiving_) return calls_.size() > 1;
  if (link_->unsent_bytes() >= kEnoughToSend || link_->blocked()) return false;
  // While there are CPUs enough, each caller had better send for itself.
  if (receiver() == Receiver::kPollingCaller && is_crowded()) return true;
  return !limits.caller_waits && calls_.size() >= kSentAtOnce;
}

void Peer::queue_call(Call& call, const detail::FunctionEntry& function, const Encoder& arguments,
                      const CallLimits& limits) {
  call.future().add_ref();  // the table's
  Access::id(call) = calls_.open(&call, limits.deadline);
  window_.open(limits.depth, Access::bytes(call));

  wire::FrameHeader header{wire::FrameKind::kCall};
  header.id = Access::id(call);
  wire::CallPrelude prelude;
  prelude.function = function.index;
  prelude.depth = static_cast<uint16_t>(limits.depth);
  prelude.remaining_us = remaining_us(limits.deadline, Access::started(call));
  // Weft's own small messages, such as renewals of leases, do not wait for bulk.
  const bool urgent = is_reserved(function) && Access::bytes(call) <= Link::kMostUrgentBytes;
  const Link::Lane lane = urgent ? link_->lane_for_urgent() : Link::Lane::kNormal;
  std::vector<bool>& announced = announced_[static_cast<size_t>(lane)];
  if (function.index >= announced.size()) announced.resize(function.index + 1);
  if (!announced[function.index]) {
    announced[function.index] = true;
    header.flags = wire::kNamed;
    prelude.name = function.name;
    prelude.signature = function.signature;
  }
  if (!limits.note.empty()) {
    header.flags |= wire::kNoted;
    prelude.note = limits.note;
  }
  Access::ends_at(call) =
      link_->queue(header, wire::PreludeBytes(prelude).bytes(), arguments, lane);
}

// Calls that were given up leave the window, but their unsent bytes stay in memory until they are
// sent or the link breaks, so unsent bytes count as well.
bool Peer::has_room(const CallLimits& limits, size_t bytes) const {
  if (!window_.has_room(limits.depth, bytes)) return false;
  const size_t unsent = link_ ? link_->unsent_bytes() : 0;
  return unsent == 0 || unsent + bytes <= runtime_->options.window_bytes;
}

// The window is full: receive what makes room, or sleep while another thread does.
bool Peer::wait_for_room(Lock& lock, const CallLimits& limits, size_t bytes) {
  detail::BlockingRegion region;
  while (state_ != State::kClosed && !has_room(limits, bytes)) {
    const base::Time now = runtime_->clock->now();
    if (now >= limits.deadline) return false;
    if (state_ == State::kConnected && may_receive()) {
      receive_as_caller(lock, std::min(limits.deadline, now + std::chrono::milliseconds(100)),
                        nullptr);
      continue;
    }
    ++waiting_for_room_;
    const base::Time until = std::min(limits.deadline, now + std::chrono::milliseconds(10));
    room_.wait_for(lock, until - now);
    --waiting_for_room_;
  }
  return state_ != State::kClosed;
}

// A link may have been closed unnoticed; a call sent there would be lost.
void Peer::notice_dead_link(Lock& lock) {
  const detail::Ref<Link> link = link_;
  const transport::Readiness ready = transport::wait_for_descriptor(
      link->descriptor(), transport::WaitFor::kReadable, base::Duration(0));
  if (!ready.readable) return;
  if (!caller_receives() && !loop_receiving_) {
    set_receiver(Receiver::kSleepingCaller);
    lock.unlock();
    receive_once(link);
    lock.lock();
    pass_on_receiving(link);
  }
  // The thread that receives may find out too late: it may be decoding a reply, or have no CPU.
  // With no call unanswered, nothing that it may still read matters.
  if (!ready.hung_up || !calls_.empty() || link_.get() != link.get()) return;
  lock.unlock();
  on_link_lost(link, Error(ErrorCode::kOutcomeUnknown, "the peer has closed the connection"));
  lock.lock();
}

void Peer::connect() {
  const base::Time now = runtime_->clock->now();
  if (!backoff_.may_try(now)) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("no connection to {}: {}", member_.address, last_failure_));
  }
  try {
    link_ = detail::make_ref<Link>(runtime_->transport->connect(member_.address), runtime_->pool);
  } catch (const Error& error) {
    backoff_.on_failure(now);
    last_failure_ = error.message();
    runtime_->liveness.on_sign(member_.info.id, sign_of_failed_connecting(error), now,
                               error.message());
    throw Error(ErrorCode::kUnavailable, error.message());
  }
  wire::Hello hello;
  hello.group = runtime_->group.token;
  hello.from = runtime_->self().info.id;
  hello.from_incarnation = runtime_->self().incarnation;
  hello.from_name = runtime_->name();
  hello.to = member_.info.id;
  hello.to_incarnation = member_.incarnation;
  Encoder body;
  encode_hello(body, hello);
  wire::FrameHeader header{wire::FrameKind::kHello};
  header.id = wire::kHelloMagic;
  link_->queue_first(header, body);

  state_ = State::kConnecting;
  counters_.connects.add();
  connect_began_ = now;
  connect_by_ = now + kConnectTimeout;
  for (std::vector<bool>& lane : announced_) lane.clear();
  bytes_at_life_ = 0;
  set_receiver(Receiver::kLoop);
  stream_up_ = false;
  interest_ = Poller::kReadable | Poller::kWritable;
  if (!runtime_->io.watch_new(link_->descriptor(), interest_, token_)) {
    state_ = State::kIdle;
    connect_by_ = base::Time::max();
    backoff_.on_failure(now);
    last_failure_ = "no descriptor can be watched any more";
    link_ = {};
    throw Error(ErrorCode::kUnavailable, last_failure_);
  }
  runtime_->io.set_due(*loop_side_, connect_by_);
}

void Peer::flush(const detail::Ref<Link>& link, size_t too_much) {
  switch (link->flush(too_much)) {
    case Link::State::kFine:
      return;
    case Link::State::kBlocked: {
      Lock lock(mutex_);
      if (link_.get() == link.get()) update_interest();
      return;
    }
    case Link::State::kBroken:
      on_link_lost(link, Error(ErrorCode::kOutcomeUnknown, link->why_broken()));
      return;
  }
}

}  // namespace weft::rpc

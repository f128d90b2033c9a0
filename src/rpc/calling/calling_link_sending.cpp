// CallingLink: making calls, connecting, writing.
// SPDX-License-Identifier: BSD-3-Clause
#include <sched.h>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/error_without_memory.h"
#include "rpc/calling/calling_link.h"
#include "rpc/functions/function_table.h"
#include "transport/poller.h"
#include "wire/call_prelude.h"
#include "wire/hello.h"

namespace weft::rpc {

namespace {

using Access = OutgoingCallAccess;

constexpr auto kConnectTimeout = std::chrono::seconds(5);
constexpr auto kQuietLink = std::chrono::milliseconds(1);
// For the outcome of another thread's write, which does not block.
constexpr int kYields = 1000;
constexpr auto kLongestWrite = std::chrono::seconds(1);

uint64_t remaining_us(base::Time deadline, base::Time now) {
  if (deadline == base::Time::max()) return 0;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
  return left > 0 ? static_cast<uint64_t>(left) : 1;
}

Error no_memory() { return Error(ErrorCode::kLimitExceeded, "there is no memory for the call"); }

}  // namespace

bool CallingLink::start(Call& call, const detail::FunctionEntry& function, Encoder& arguments,
                        const CallLimits& limits) {
  Access::link(call) = detail::Ref<CallingLink>::share(this);
  Access::function(call) = &function;
  Access::started(call) = limits.asked;
  Access::deadline(call) = limits.deadline;
  Access::depth(call) = limits.depth;
  Access::bytes(call) = arguments.payload().size() + arguments.tensor_bytes();
  if (!arguments.kept().empty()) Access::kept(call) = arguments.kept();
  if (!is_reserved(function)) runtime_->counters.outstanding.begin();

  Sending sending = send(call, function, arguments, limits, limits.connected);
  if (sending == Sending::kBroke) {
    // The connection broke before the call's frame had left completely, so the callee cannot have
    // run it: this thread sends it once more, on a new connection.
    Access::never_anew(call);
    sending = send(call, function, arguments, limits, runtime_->clock->now());
  }
  if (sending != Sending::kRetired) {
    counters_.calls.add();
    return true;
  }
  if (!is_reserved(function)) runtime_->counters.outstanding.end();
  return false;
}

CallingLink::Sending CallingLink::fail_unsent(Call& call, const Error& error) {
  fail(call, base::error_by(error.code(), [&] {
         return Error(error.code(),
                      fmt::format("{} was not sent to {}: {}", Access::function(call)->name,
                                  member_.info.name, error.message()));
       }));
  return Sending::kDone;
}

// kBroke: the connection broke before the whole frame had left; the call is not settled.
CallingLink::Sending CallingLink::send(Call& call, const detail::FunctionEntry& function,
                                       Encoder& arguments, const CallLimits& limits,
                                       base::Time now) {
  detail::Ref<Link> staged_over;  // see let_go(); dropped when the call is out
  std::optional<Error> why_no_room;
  bool has_room = false;
  Lock lock(mutex_);
  if (retired_) return Sending::kRetired;
  if (now < connection_changed_) now = runtime_->clock->now();  // the call has waited for it
  try {
    // With no call unanswered, the loop hardly receives a reply: more likely the connection ends.
    const bool doubtful =
        now - last_received_ > kQuietLink || (reception_.loop_reads() && calls_.empty());
    if (state_ == State::kConnected && doubtful) notice_dead_link();
    why_no_room = make_room(call, function, limits, now);
    has_room = !why_no_room;
    // From here on no code of users runs until the call is in the table: it might make a call that
    // waits for this room.
    if (has_room && stage(arguments, staged_over)) {
      now = runtime_->clock->now();
      if (state_ == State::kConnected && calls_.empty()) notice_hang_up();
    }
    if (has_room && state_ == State::kClosed) throw *closed_because_;
    if (has_room && !retired_ && state_ == State::kIdle) connect();
  } catch (const Error& error) {
    if (has_room) give_room_back(call);
    lock.unlock();
    return fail_unsent(call, error);
  } catch (const std::bad_alloc&) {
    if (has_room) give_room_back(call);
    lock.unlock();
    return fail_unsent(call, base::error_by(ErrorCode::kLimitExceeded, no_memory));
  }
  if (why_no_room) {
    lock.unlock();
    fail(call, *why_no_room);
    return Sending::kDone;
  }
  if (retired_) {
    give_room_back(call);
    return Sending::kRetired;
  }
  const detail::Ref<Link> link = link_;
  bool queued = false;
  try {
    queued = queue_call(call, function, arguments, limits, now);
  } catch (const std::exception&) {
    // A part of the frame may be queued, so nothing more may be sent after it.
    link->close();
    lock.unlock();
    lose(link, base::error_by(ErrorCode::kLimitExceeded, no_memory));
    return Access::finish_starting(call) ? Sending::kDone : Sending::kBroke;
  }
  if (!queued) {
    give_room_back(call);
    lock.unlock();
    return fail_unsent(call, base::error_by(ErrorCode::kLimitExceeded, no_memory));
  }
  const bool defer = should_defer(limits);
  const bool connected = state_ == State::kConnected;
  const bool expires_soon = calls_.earliest_deadline() == limits.deadline;
  const bool alone = calls_.size() == 1;
  if (defer) link->defer_flush();
  if (!connected || defer) Access::never_anew(call);
  // Weft's own messages keep idle agents busy enough. While the loop receives, there is nothing for
  // a tick to look after but frames that were put off.
  const bool needs_ticks =
      !is_reserved(function) || reception_.receiver() != Receiver::kLoop || defer;
  lock.unlock();
  if (staged_over) drop_originals(arguments);

  if (needs_ticks && !want_ticks()) lose_without_ticks(link);
  if (expires_soon) set_due();
  try {
    if (connected && !defer) {
      flush(link);
      if (alone && !link->has_sent(Access::ends_at(call))) {
        wait_for_other_writer(call, *link);
        if (link->broken()) flush(link);  // which finds out, if nobody has
      }
    }
  } catch (const std::bad_alloc&) {
    link->close();  // the thread that receives finds it closed, and settles the call
  }
  return Access::finish_starting(call) || settle_if_sent(call, *link) ? Sending::kDone
                                                                      : Sending::kBroke;
}

// For a link that exists; what is sent over another one goes in its frames. False: nothing was to
// be done.
bool CallingLink::stage(Encoder& arguments, detail::Ref<Link>& link) {
  if (arguments.tensor_bytes() < wire::kSmallestCarried || !link_) return false;
  link = link_;
  const base::Unlocked unlocked(mutex_);
  link->stage(arguments, Link::Originals::kKept);
  return true;
}

void CallingLink::drop_originals(Encoder& arguments) {
  for (Encoder::OutgoingTensor& tensor : arguments.tensors()) tensor.original = at::Tensor();
}

// The first call after a pause: if the loop is writing it, the link has just become readable or
// writable, perhaps by breaking. It is worth a moment to see the outcome of that write, which takes
// long only if the writing thread has no CPU.
void CallingLink::wait_for_other_writer(Call& call, const Link& link) {
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
bool CallingLink::settle_if_sent(Call& call, const Link& link) {
  while (link.is_offering()) sched_yield();
  if (!was_sent(call, &link)) return false;
  fail(call, base::error_by(ErrorCode::kOutcomeUnknown, [&] {
         return Error(
             ErrorCode::kOutcomeUnknown,
             fmt::format("{} was sent to {}, then the connection broke: {}",
                         Access::function(call)->name, member_.info.name, link.why_broken()));
       }));
  return true;
}

bool CallingLink::should_defer(const CallLimits& limits) const {
  return reception_.puts_off({.calls = calls_.size(),
                              .unsent_bytes = link_->unsent_bytes(),
                              .blocked = link_->blocked(),
                              .caller_waits = limits.caller_waits});
}

// False: there is no memory, and nothing was done.
bool CallingLink::queue_call(Call& call, const detail::FunctionEntry& function,
                             const Encoder& arguments, const CallLimits& limits, base::Time now) {
  try {
    Access::id(call) = calls_.open(&call, limits.deadline);
  } catch (const std::bad_alloc&) {
    return false;
  }
  call.future().add_ref();  // the table's

  wire::FrameHeader header{wire::FrameKind::kCall};
  header.id = Access::id(call);
  wire::CallPrelude prelude;
  prelude.function = function.index;
  prelude.depth = static_cast<uint16_t>(limits.depth);
  prelude.remaining_us = remaining_us(limits.deadline, now);
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
  return true;
}

// Takes room for the call, which may wait for it. Returns why there is none.
std::optional<Error> CallingLink::make_room(Call& call, const detail::FunctionEntry& function,
                                            const CallLimits& limits, base::Time& now) {
  if (state_ == State::kClosed) return closed_because_;
  const size_t bytes = Access::bytes(call);
  try {
    window_.prepare(limits.depth);
    if (is_reserved(function)) {
      // Weft's own calls do not wait: leases and liveness must not depend on users' calls.
      shared_window_->open(limits.depth, bytes);
      window_.open(limits.depth, bytes);
      return std::nullopt;
    }
    if (take_room(limits, bytes, Claim::kNone) == Room::kTaken) return std::nullopt;
    const bool has_room = wait_for_room(limits, bytes);
    now = runtime_->clock->now();
    if (has_room) return std::nullopt;
  } catch (const std::bad_alloc&) {
    return base::error_by(ErrorCode::kLimitExceeded, no_memory);
  }
  if (state_ == State::kClosed) return closed_because_;
  return base::error_by(ErrorCode::kTimeout, [&] { return timeout_error(call, /*queued=*/false); });
}

// Takes room in the window of this connection, which has a place for the depth, and in that of all
// connections to the member. Calls that were given up leave the window, but their bytes stay in
// memory until they are read or the link breaks, so unread bytes count as well.
CallingLink::Room CallingLink::take_room(const CallLimits& limits, size_t bytes, Claim claim) {
  if (claim == Claim::kNone && shared_window_->is_claimed(limits.depth, bytes, this))
    return Room::kNoneAtMember;
  const bool has_room = claim == Claim::kMine ? window_.has_room_beside_small(limits.depth, bytes)
                                              : window_.has_room(limits.depth, bytes);
  if (!has_room) return Room::kNoneHere;
  const size_t unread = link_ ? link_->unread_bytes() : 0;
  if (unread > 0 && unread + bytes > runtime_->options.window_bytes) return Room::kNoneHere;
  if (!shared_window_->try_open(limits.depth, bytes)) return Room::kNoneAtMember;
  window_.open(limits.depth, bytes);
  return Room::kTaken;
}

// The window is full: receive what makes room, or sleep while another thread does. False: the
// deadline has passed, or the connection was closed for good.
bool CallingLink::wait_for_room(const CallLimits& limits, size_t bytes) {
  constexpr auto kOneSleep = std::chrono::milliseconds(10);
  constexpr auto kOneTurnOfReceiving = std::chrono::milliseconds(100);
  detail::BlockingRegion region;
  using Lacks = SharedWindow::Lacks;
  SharedWindow::Waiter waiter(*shared_window_, limits.depth, bytes, this,
                              std::chrono::steady_clock::now());
  Lacks lacks = Lacks::kHere;
  while (state_ != State::kClosed) {
    const uint32_t sign = waiter.sign();
    const bool claims = waiter.claims(lacks, std::chrono::steady_clock::now());
    const Room room = take_room(limits, bytes, claims ? Claim::kMine : Claim::kNone);
    if (room == Room::kTaken) return true;
    lacks = room == Room::kNoneHere ? Lacks::kHere : Lacks::kAtMember;
    const base::Time now = runtime_->clock->now();
    if (now >= limits.deadline) return false;
    if (room == Room::kNoneHere && !calls_.empty() && reception_.may_begin()) {
      receive_as_caller(std::min(limits.deadline, now + kOneTurnOfReceiving), nullptr);
      continue;
    }
    // Answers over any of the connections make room: this thread waits for whichever comes first.
    let_loop_receive();
    detail::Ref<Link> due = link_to_flush();
    const base::Unlocked unlocked(mutex_);
    const detail::Ref<Link> link = std::move(due);  // see let_go()
    if (link) flush(link);
    waiter.wait(sign, std::chrono::steady_clock::now() +
                          std::min<base::Duration>(limits.deadline - now, kOneSleep));
  }
  return false;
}

// A link may have been closed unnoticed; a call sent there would be lost.
void CallingLink::notice_dead_link() {
  detail::Ref<Link> link = link_;
  const transport::Readiness ready =
      link->connection().wait(transport::kReadable, base::Duration(0));
  if (!ready.readable) return;
  if (reception_.may_glance()) {
    const Term term = reception_.begin(/*polls=*/false);
    try {
      const base::Unlocked unlocked(mutex_);
      receive_once(link);
    } catch (...) {  // no memory
      pass_on_receiving(term);
      let_go(std::move(link));
      throw;
    }
    pass_on_receiving(term);
  }
  // The thread that receives may find out too late: it may be decoding a reply, or have no CPU.
  if (ready.hung_up) notice_hang_up();
  let_go(std::move(link));
}

// With no call unanswered, nothing that somebody may still read on a closed connection matters.
void CallingLink::notice_hang_up() {
  if (!link_ || !calls_.empty()) return;
  if (!link_->connection().wait(transport::kReadable, base::Duration(0)).hung_up) return;
  detail::Ref<Link> its = link_;
  const base::Unlocked unlocked(mutex_);
  const detail::Ref<Link> dead = std::move(its);  // see let_go()
  on_link_lost(dead, base::error_by(ErrorCode::kOutcomeUnknown, [] {
                 return Error(ErrorCode::kOutcomeUnknown, "the peer has closed the connection");
               }));
}

void CallingLink::connect() {
  const base::Time now = runtime_->clock->now();
  if (!backoff_.may_try(now)) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("no connection to {}: {}", member_.address, last_failure_));
  }
  try {
    link_ = detail::make_ref<Link>(runtime_->transport->connect(member_.address), runtime_->pool);
    link_->decoder().expect_answer_to_hello();
    way_ = link_->connection().way();
  } catch (const Error& error) {
    backoff_.on_failure(now);
    last_failure_ = error.message();
    runtime_->liveness.on_sign(member_.info.id, sign_of_failed_connecting(error), now,
                               error.message());
    throw Error(ErrorCode::kUnavailable, error.message());
  }
  wire::Hello hello;
  hello.features = Link::offered_features();
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

  set_state(State::kConnecting);
  counters_.connects.add();
  connect_began_ = connection_changed_ = now;
  connect_by_ = now + kConnectTimeout;
  for (std::vector<bool>& lane : announced_) lane.clear();
  bytes_at_life_ = 0;
  reception_.on_connecting();
  stream_up_ = false;
  interest_ = transport::kReadable | transport::kWritable;
  runtime_->io.set_due(*loop_side_, connect_by_);
  bool is_watched = false;
  try {
    is_watched = runtime_->io.watch_new(link_->connection(), interest_, token_);
  } catch (const std::bad_alloc&) {
    // As if there were no descriptor.
  }
  if (!is_watched) {
    set_state(State::kIdle);
    connect_by_ = base::Time::max();
    backoff_.on_failure(now);
    link_ = {};
    reception_.on_lost();
    last_failure_ = "no connection can be watched any more";  // last: it may lack memory
    throw Error(ErrorCode::kUnavailable, last_failure_);
  }
}

bool CallingLink::retire() {
  Lock lock(mutex_);
  if (state_ == State::kConnected || !calls_.empty()) return false;
  retired_ = true;
  if (state_ != State::kConnecting) return true;
  const detail::Ref<Link> link = link_;
  lock.unlock();
  on_link_lost(link, Error(ErrorCode::kUnavailable, "another connection is used"),
               SignOfLife::kUnreachable);
  return true;
}

bool CallingLink::wait_until_connected(std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  {
    Lock lock(mutex_);
    try {
      if (state_ == State::kIdle) connect();
    } catch (const Error&) {
      return false;
    }
  }
  detail::BlockingRegion region;
  auto pause = std::chrono::microseconds(10);
  for (;;) {
    if (is_connected()) return true;
    {
      Lock lock(mutex_);
      if (state_ != State::kConnecting) return state_ == State::kConnected;
    }
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(1));
  }
}

bool CallingLink::connects_since_less_than(base::Duration time) {
  const Lock lock(mutex_);
  return state_ == State::kConnecting && runtime_->clock->now() - connect_began_ < time;
}

void CallingLink::flush(const detail::Ref<Link>& link, size_t too_much) {
  switch (link->flush(too_much)) {
    case Link::State::kFine:
      return;
    case Link::State::kBlocked: {
      Lock lock(mutex_);
      if (link_.get() == link.get()) update_interest();
      return;
    }
    case Link::State::kBroken:
      on_broken(link);
      return;
  }
}

}  // namespace weft::rpc

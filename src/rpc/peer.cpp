// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/peer.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/poller.h"
#include "wire/call_prelude.h"
#include "wire/hello.h"

namespace weft::rpc {

namespace {

using Access = OutgoingCallAccess;
using transport::Poller;

constexpr auto kConnectTimeout = std::chrono::seconds(5);
constexpr size_t kSentAtOnce = 8;            // calls unanswered below which each is sent at once
constexpr size_t kEnoughToSend = 32 * 1024;  // bytes that are worth a system call of their own
constexpr auto kQuietLink = std::chrono::milliseconds(1);
constexpr int kQuietTicksBeforeWatching = 10;
constexpr int kPatienceWithLoop = 1000;
constexpr int kLoopReceives = 64;  // before the loop looks at others again

bool is_reserved(const detail::FunctionEntry& function) { return function.name.starts_with("sys."); }

uint64_t remaining_us(base::Time deadline, base::Time now) {
  if (deadline == base::Time::max()) return 0;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
  return left > 0 ? static_cast<uint64_t>(left) : 1;
}

}  // namespace

// What the I/O loop holds on to; outlives the peer's other owners only inside one callback.
class Peer::LoopSide final : public IoClient {
 public:
  explicit LoopSide(Peer& peer) : peer_(peer) {}
  void on_event(bool readable, bool writable) override { peer_.on_event(readable, writable); }
  void on_time(base::Time now) override { peer_.on_time(now); }

 private:
  Peer& peer_;
};

Peer::Peer(std::shared_ptr<Runtime> runtime, Member member)
    : runtime_(std::move(runtime)),
      member_(std::move(member)),
      loop_side_(std::make_shared<LoopSide>(*this)),
      window_(runtime_->options.window_calls, runtime_->options.window_bytes),
      backoff_(runtime_->self().incarnation ^ member_.incarnation),
      heartbeat_({runtime_->options.heartbeat_interval, runtime_->options.suspect_after,
                  runtime_->options.dead_after},
                 runtime_->clock->now()) {
  token_ = runtime_->io.add(loop_side_);
}

// --- sending ---------------------------------------------------------------------------------

void Peer::start(Call& call, const detail::FunctionEntry& function, const Encoder& arguments,
                 const CallTerms& terms) {
  Access::peer(call) = detail::Ref<Peer>::share(this);
  Access::function(call) = &function;
  Access::deadline(call) = terms.deadline;
  Access::depth(call) = terms.depth;
  Access::bytes(call) = arguments.payload().size() + arguments.tensor_bytes();
  counters_.calls.add();
  if (!is_reserved(function)) {
    runtime_->counters.calls_started.add();
    runtime_->counters.outstanding.fetch_add(1, std::memory_order_relaxed);
  }

  if (send(call, function, arguments, terms)) return;
  // The connection turned out to be broken before a byte of the call had left: it is made anew, on
  // a new connection, once.
  Access::never_anew(call);
  send(call, function, arguments, terms);
}

// False: nothing was sent and nothing settled, because of a connection that had broken before.
bool Peer::send(Call& call, const detail::FunctionEntry& function, const Encoder& arguments,
                const CallTerms& terms) {
  Lock lock(mutex_);
  Access::started(call) = runtime_->clock->now();
  if (state_ == State::kClosed) {
    lock.unlock();
    fail(call, *closed_because_);
    return true;
  }
  if (!has_room(terms, Access::bytes(call)) &&
      !wait_for_room(lock, terms, Access::bytes(call))) {
    const std::optional<Error> closed = state_ == State::kClosed ? closed_because_ : std::nullopt;
    lock.unlock();
    fail(call, closed ? *closed : timeout_error(call, /*queued=*/false));
    return true;
  }
  try {
    if (state_ == State::kConnected && Access::started(call) - last_received_ > kQuietLink) {
      notice_dead_link(lock);
    }
    if (state_ == State::kClosed) throw *closed_because_;
    if (state_ == State::kIdle) connect();
  } catch (const Error& error) {
    lock.unlock();
    fail(call, Error(error.code(), fmt::format("{} was not sent to {}: {}", function.name,
                                               member_.info.name, error.message())));
    return true;
  }
  queue_call(call, function, arguments, terms);
  const bool defer = should_defer(terms);
  const detail::Ref<Link> link = link_;
  const bool connected = state_ == State::kConnected;
  const bool expires_soon = calls_.earliest_deadline() == terms.deadline;
  if (defer) deferred_ = true;
  if (!connected || defer) Access::never_anew(call);
  lock.unlock();

  runtime_->pulse.touch();
  if (expires_soon) update_due();
  if (connected && !defer) flush(link);
  return Access::finish_starting(call);
}

bool Peer::should_defer(const CallTerms& terms) const {
  if (loop_receiving_) return true;  // it sends when it has handed out the replies at hand
  return !terms.caller_waits && calls_.size() >= kSentAtOnce && !link_->blocked() &&
         link_->unsent_bytes() < kEnoughToSend;
}

void Peer::queue_call(Call& call, const detail::FunctionEntry& function, const Encoder& arguments,
                      const CallTerms& terms) {
  call.future().add_ref();  // the table's
  Access::id(call) = calls_.open(&call, terms.deadline);
  window_.open(terms.depth, Access::bytes(call));

  wire::FrameHeader header{wire::FrameKind::kCall};
  header.id = Access::id(call);
  wire::CallPrelude prelude;
  prelude.function = function.index;
  prelude.depth = static_cast<uint16_t>(terms.depth);
  prelude.remaining_us = remaining_us(terms.deadline, Access::started(call));
  if (function.index >= announced_.size()) announced_.resize(function.index + 1);
  if (!announced_[function.index]) {
    announced_[function.index] = true;
    header.flags = wire::kNamed;
    prelude.name = function.name;
    prelude.signature = function.signature;
  }
  Access::sent_at_byte(call) =
      link_->queue(header, wire::PreludeBytes(prelude).bytes(), arguments);
}

// Calls that were given up leave the window, but what of them is unsent stays in memory until it is
// sent or the link breaks: it counts as well.
bool Peer::has_room(const CallTerms& terms, size_t bytes) const {
  if (!window_.has_room(terms.depth, bytes)) return false;
  const size_t unsent = link_ ? link_->unsent_bytes() : 0;
  return unsent == 0 || unsent + bytes <= runtime_->options.window_bytes;
}

// The window is full: receive what makes room, or sleep while another thread does.
bool Peer::wait_for_room(Lock& lock, const CallTerms& terms, size_t bytes) {
  detail::BlockingRegion region;
  while (state_ != State::kClosed && !has_room(terms, bytes)) {
    const base::Time now = runtime_->clock->now();
    if (now >= terms.deadline) return false;
    if (state_ == State::kConnected && may_receive()) {
      receiver_ = Receiver::kCaller;
      const detail::Ref<Link> link = link_;
      lock.unlock();
      flush(link);
      receive_until(link, std::min(terms.deadline, now + std::chrono::milliseconds(100)), nullptr);
      lock.lock();
      pass_on_receiving(link);
      continue;
    }
    ++waiting_for_room_;
    const base::Time until = std::min(terms.deadline, now + std::chrono::milliseconds(10));
    room_.wait_for(lock, until - now);
    --waiting_for_room_;
  }
  return state_ != State::kClosed;
}

// A link that nobody receives on may have been closed unnoticed; a call sent there would be lost.
void Peer::notice_dead_link(Lock& lock) {
  // The loop may be about to find out.
  for (int i = 0; loop_receiving_ && i < kPatienceWithLoop; ++i) {
    lock.unlock();
    sched_yield();
    lock.lock();
  }
  if (state_ != State::kConnected || receiver_ == Receiver::kCaller || loop_receiving_) return;
  const transport::Readiness ready = transport::wait_for_descriptor(
      link_->descriptor(), transport::WaitFor::kReadable, base::Duration(0));
  if (!ready.readable) return;
  receiver_ = Receiver::kCaller;
  const detail::Ref<Link> link = link_;
  lock.unlock();
  receive_once(link);
  lock.lock();
  pass_on_receiving(link);
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
  connect_by_ = now + kConnectTimeout;
  announced_.clear();
  receiver_ = Receiver::kLoop;
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

void Peer::flush(const detail::Ref<Link>& link) {
  switch (link->flush()) {
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

// --- receiving -------------------------------------------------------------------------------

bool Peer::may_receive() const {
  return receiver_ == Receiver::kNobody ||
         (receiver_ == Receiver::kLoop && !loop_receiving_ && waiters_.empty());
}

bool Peer::wait_for(Call& call, std::optional<base::Time> until) {
  detail::FutureCore& future = call.future();
  const bool own_clock = runtime_->clock->runs_by_itself();
  std::optional<detail::BlockingRegion> region;
  while (!future.ready()) {
    const base::Time limit =
        std::min(until.value_or(base::Time::max()), own_clock ? Access::deadline(call) : base::Time::max());
    Lock lock(mutex_);
    if (future.ready()) break;
    if (state_ == State::kConnected && may_receive()) {
      receiver_ = Receiver::kCaller;
      deferred_ = false;
      const detail::Ref<Link> link = link_;
      lock.unlock();
      if (!region) region.emplace();
      if (link->has_queued()) flush(link);
      receive_until(link, limit, &call);
      lock.lock();
      pass_on_receiving(link);
    } else {
      waiters_.push_back(&call);
      detail::Ref<Link> link;
      if (deferred_ && !loop_receiving_) {
        link = link_;
        deferred_ = false;
      }
      Access::mark_sleeper(call);  // under the lock: a nudge from now on is not lost
      lock.unlock();
      if (!region) region.emplace();
      if (link) flush(link);
      Access::sleep(call, limit == base::Time::max() ? std::nullopt : std::optional(limit));
      lock.lock();
      waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &call));
    }
    lock.unlock();
    if (future.ready()) break;
    const base::Time now = runtime_->clock->now();
    if (now >= Access::deadline(call)) {
      expire(call);
    } else if (until && std::chrono::steady_clock::now() >= *until) {
      return false;
    }
  }
  return true;
}

// Receives until `call` is settled (any call, if null), the link breaks or `limit` passed.
void Peer::receive_until(const detail::Ref<Link>& link, base::Time limit, const Call* call) {
  using SteadyClock = std::chrono::steady_clock;
  detail::FutureCore* future = call ? &const_cast<Call*>(call)->future() : nullptr;
  spinner_.begin(runtime_->spin);
  bool try_first = runtime_->spin.count() > 0;
  bool waits = false;  // one system call instead of two, where its coarse limit does not matter
  for (;;) {
    if (try_first || waits) {
      switch (std::exchange(waits, false) ? link->wait_and_receive() : link->receive()) {
        case Link::State::kFine:
          take_frames(link);
          if (!future || future->ready() || SteadyClock::now() >= limit) return;
          try_first = true;
          continue;
        case Link::State::kBroken:
          on_link_lost(link, Error(ErrorCode::kOutcomeUnknown, link->why_broken()));
          return;
        case Link::State::kBlocked:
          break;
      }
      if (future && future->ready()) return;
      try_first = spinner_.again();
      if (try_first) continue;
    }
    const base::Duration left = limit - SteadyClock::now();
    if (left.count() <= 0) return;
    if (!link->blocked() && left > transport::kLongestReceive) {
      waits = true;
      continue;
    }
    const auto what = link->blocked() ? transport::WaitFor::kReadableOrWritable
                                      : transport::WaitFor::kReadable;
    const transport::Readiness ready = transport::wait_for_descriptor(
        link->descriptor(), what, std::min<base::Duration>(left, transport::kLongestReceive));
    if (ready.writable && link->blocked()) flush(link);
    try_first = ready.readable;
    if (future && future->ready()) return;
  }
}

bool Peer::receive_once(const detail::Ref<Link>& link) {
  switch (link->receive()) {
    case Link::State::kFine:
      take_frames(link);
      return true;
    case Link::State::kBlocked:
      return false;
    case Link::State::kBroken:
      on_link_lost(link, Error(ErrorCode::kOutcomeUnknown, link->why_broken()));
      return false;
  }
  return false;
}

void Peer::take_frames(const detail::Ref<Link>& link) {
  const base::Time now = runtime_->clock->now();
  {
    Lock lock(mutex_);
    last_received_ = now;
    heartbeat_.on_received(now);
    ++receives_;
  }
  try {
    while (link->next_frame()) {
      wire::Frame& frame = link->frame();
      switch (frame.header.kind) {
        case wire::FrameKind::kReply:
          on_reply(frame);
          break;
        case wire::FrameKind::kPong:
          break;
        case wire::FrameKind::kHello:
          on_hello(link, frame);
          break;
        case wire::FrameKind::kGoodbye:
          on_link_lost(link, Error(ErrorCode::kUnavailable,
                                   std::string(reinterpret_cast<const char*>(frame.body.data()),
                                               frame.body.size())));
          return;
        default:
          throw Error(ErrorCode::kBadMessage,
                      fmt::format("a frame of kind {} in a reply stream",
                                  static_cast<int>(frame.header.kind)));
      }
    }
  } catch (const Error& error) {
    base::log(LogLevel::kWarning, runtime_->name(),
              fmt::format("closing the connection to {}: {}", member_.info.name, error.message()));
    runtime_->counters.bad_connections.add();
    on_link_lost(link, Error(ErrorCode::kOutcomeUnknown, error.message()));
  }
}

void Peer::on_reply(wire::Frame& frame) {
  Call* call;
  base::Time received;
  {
    Lock lock(mutex_);
    call = calls_.take(frame.header.id);
    if (call) close_window(*call);
    received = last_received_;
  }
  if (!call) {
    runtime_->counters.late_replies.add();
    return;
  }
  counters_.round_trip.record((received - Access::started(*call)).count());
  settle_reply(*call, frame);
}

void Peer::settle_reply(Call& call, wire::Frame& frame) {
  detail::FutureCore& future = call.future();
  try {
    if (frame.header.flags & wire::kFailed) {
      const wire::FailedReply failed = wire::decode_failed(frame.body);
      counters_.failed.add();
      if (failed.code == ErrorCode::kRemoteError) {
        future.settle_error(Error::remote(member_.info.name, failed.type, failed.text),
                            &runtime_->io);
      } else {
        future.settle_error(Error(failed.code, fmt::format("{} on {}: {}",
                                                           Access::function(call)->name,
                                                           member_.info.name, failed.text)),
                            &runtime_->io);
      }
    } else {
      Decoder result(frame.body, frame.tensors);
      call.settle_with(result, &runtime_->io);
    }
  } catch (const std::exception& error) {
    counters_.failed.add();
    future.settle_error(Error(ErrorCode::kBadMessage,
                              fmt::format("the result of {} on {} does not decode: {}",
                                          Access::function(call)->name, member_.info.name,
                                          error.what())),
                        &runtime_->io);
  }
  note_settled(call);
  future.release();  // the table's
}

// Counted down after continuations were posted: at no time does a chain of calls look finished.
void Peer::note_settled(Call& call) {
  if (!is_reserved(*Access::function(call))) {
    runtime_->counters.outstanding.fetch_sub(1, std::memory_order_release);
  }
}

// The role belongs to a link: when `link` was lost meanwhile, another thread may have it already.
void Peer::pass_on_receiving(const detail::Ref<Link>& link) {
  if (link_.get() != link.get()) return;
  receiver_ = Receiver::kNobody;
  Call* waiter = nullptr;
  size_t waiting = 0;
  for (Call* each : waiters_) {
    if (each->future().ready()) continue;  // about to leave
    waiter = each;
    ++waiting;
  }
  if (waiting == 1 && listeners_ == 0) {
    Access::nudge(*waiter);
  } else if (waiting > 0 || listeners_ > 0) {
    let_loop_receive();
  } else {
    quiet_ticks_ = 0;  // the pulse looks after what is left
    runtime_->pulse.touch();
  }
}

void Peer::let_loop_receive() {
  receiver_ = Receiver::kLoop;
  update_interest();
}

// Not called when a caller takes over from the loop: the loop finds out at the next event, once,
// which costs the caller nothing.
void Peer::update_interest() {
  uint32_t wanted = Poller::kNothing;
  if (receiver_ == Receiver::kLoop) wanted |= Poller::kReadable;
  if (!stream_up_ || link_->blocked()) wanted |= Poller::kWritable;
  if (std::exchange(interest_, wanted) != wanted) {
    runtime_->io.watch(link_->descriptor(), wanted, token_);
  }
}

void Peer::need_receiver() {
  Lock lock(mutex_);
  ++listeners_;
  if (state_ == State::kConnected && receiver_ == Receiver::kNobody) let_loop_receive();
  detail::Ref<Link> link;
  if (deferred_ && !loop_receiving_) {
    link = link_;
    deferred_ = false;
  }
  lock.unlock();
  if (link) flush(link);
}

void Peer::on_tick() {
  Lock lock(mutex_);
  if (state_ != State::kConnected) return;
  const bool idle = receives_ == receives_at_tick_;
  receives_at_tick_ = receives_;
  quiet_ticks_ = idle ? quiet_ticks_ + 1 : 0;
  if (receiver_ == Receiver::kNobody &&
      quiet_ticks_ >= (calls_.empty() ? kQuietTicksBeforeWatching : 1)) {
    let_loop_receive();
  }
  if (!deferred_) return;
  deferred_ = false;
  const detail::Ref<Link> link = link_;
  lock.unlock();
  flush(link);
}

// --- the loop's side -------------------------------------------------------------------------

void Peer::on_event(bool readable, bool writable) {
  Lock lock(mutex_);
  if (!link_) return;
  const detail::Ref<Link> link = link_;
  if (!stream_up_ && writable) {
    const std::string error = link->connection().connect_error();
    if (!error.empty()) {
      lock.unlock();
      return on_link_lost(link, Error(ErrorCode::kUnavailable, error));
    }
    stream_up_ = true;
  }
  const bool receive = readable && receiver_ != Receiver::kCaller;
  if (receive) receiver_ = Receiver::kLoop;
  loop_receiving_ = receive;
  lock.unlock();

  if (writable) flush(link);
  if (receive) receive_on_loop(link);

  lock.lock();
  loop_receiving_ = false;
  if (link_.get() != link.get()) return;
  update_interest();
  // Callers that were answered above and called again have left their frames for us.
  const bool left = state_ == State::kConnected && (deferred_ || link->has_queued());
  deferred_ = false;
  lock.unlock();
  if (left) flush(link);
}

void Peer::receive_on_loop(const detail::Ref<Link>& link) {
  for (int i = 0; i < kLoopReceives; ++i) {
    if (!receive_once(link) || !link->within_frame()) return;
  }
}

void Peer::on_hello(const detail::Ref<Link>& link, wire::Frame& frame) {
  const wire::Hello hello = wire::decode_hello(frame.body);
  Lock lock(mutex_);
  if (link_.get() != link.get()) return;
  if (state_ != State::kConnecting) throw Error(ErrorCode::kBadMessage, "a second hello");
  if (hello.version != wire::kProtocolVersion || hello.group != runtime_->group.token ||
      hello.from != member_.info.id || hello.from_incarnation != member_.incarnation) {
    lock.unlock();
    on_link_lost(link, Error(ErrorCode::kUnauthenticated,
                             fmt::format("another worker answers at {}: \"{}\"", member_.address,
                                         hello.from_name)));
    return;
  }
  state_ = State::kConnected;
  connect_by_ = base::Time::max();
  backoff_.on_success();
  heartbeat_ = Heartbeat({runtime_->options.heartbeat_interval, runtime_->options.suspect_after,
                          runtime_->options.dead_after},
                         runtime_->clock->now());
  link->open();
  lock.unlock();
  flush(link);
  update_due();
}

void Peer::update_due() {
  Lock lock(mutex_);
  base::Time due = std::min(calls_.earliest_deadline(), connect_by_);
  if (state_ == State::kConnected) due = std::min(due, heartbeat_.next());
  // Under the lock, so that a later state is not overwritten by an earlier one.
  runtime_->io.set_due(*loop_side_, due);
}

void Peer::on_time(base::Time now) {
  Lock lock(mutex_);
  std::vector<Call*> expired = calls_.take_expired(now);
  for (Call* call : expired) close_window(*call);
  const detail::Ref<Link> link = link_;
  std::optional<Error> lost;
  bool ping = false;
  bool suspect = false;
  // A large frame may keep both sides from saying anything else. While more waits than the system
  // takes, whatever leaves makes room for what the peer has taken: a sign of life.
  if (link) {
    const uint64_t sent = link->sent_bytes();
    const bool grew = std::exchange(sent_at_last_time_, sent) != sent;
    if (std::exchange(blocked_at_last_time_, link->blocked()) && grew) heartbeat_.on_received(now);
  }
  const base::Duration silence = heartbeat_.silence(now);
  if (state_ == State::kConnecting && now >= connect_by_) {
    lost = Error(ErrorCode::kUnavailable, "no answer within 5 s");
  } else if (state_ == State::kConnected) {
    switch (heartbeat_.on_time(now)) {
      case Heartbeat::Verdict::kFine:
        break;
      case Heartbeat::Verdict::kSuspect:
        suspect = true;
        [[fallthrough]];
      case Heartbeat::Verdict::kPing:
        ping = true;
        break;
      case Heartbeat::Verdict::kDead:
        lost = Error(ErrorCode::kPeerLost,
                     fmt::format("no sign of life for {} ms", silence / std::chrono::milliseconds(1)));
        break;
    }
    if (ping && receiver_ == Receiver::kNobody) let_loop_receive();
  }
  lock.unlock();

  if (suspect) {
    base::log(LogLevel::kWarning, runtime_->name(),
              fmt::format("{} has been silent for {} ms", member_.info.name,
                          silence / std::chrono::milliseconds(1)));
  }
  for (Call* call : expired) settle_expired(*call);
  if (lost) {
    on_link_lost(link, *lost);
  } else if (ping) {
    link->queue(wire::FrameHeader{wire::FrameKind::kPing});
    flush(link);
  }
  update_due();
}

// --- ends ------------------------------------------------------------------------------------

bool Peer::was_sent(Call& call, const Link* link) const {
  return link && link->offered_bytes() >= Access::sent_at_byte(call);
}

void Peer::on_link_lost(const detail::Ref<Link>& link, const Error& why) {
  Lock lock(mutex_);
  if (link_.get() != link.get() || state_ == State::kClosed) return;
  const bool was_connected = state_ == State::kConnected;
  const base::Time now = runtime_->clock->now();
  runtime_->io.unwatch(link->descriptor());
  link->close();
  counters_.bytes_sent += link->sent_bytes();
  counters_.bytes_received += link->received_bytes();
  link_ = {};
  state_ = State::kIdle;
  connect_by_ = base::Time::max();
  deferred_ = false;
  // The caller that receives on the lost link notices by itself; the role is free for the next link.
  receiver_ = Receiver::kNobody;
  if (!was_connected) backoff_.on_failure(now);
  last_failure_ = why.message();
  std::vector<Call*> calls = calls_.take_all();
  for (Call* call : calls) close_window(*call);
  if (was_connected) {
    std::erase_if(calls, [&](Call* call) {
      if (was_sent(*call, link.get()) || !Access::ask_anew(*call)) return false;
      call->future().release();  // the table's; its maker has another
      return true;
    });
  }
  lock.unlock();
  settle_lost(std::move(calls), *link, why, was_connected);
}

void Peer::settle_lost(std::vector<Call*> calls, const Link& link, const Error& why,
                       bool was_connected) {
  for (Call* call : calls) {
    const std::string& function = Access::function(*call)->name;
    const std::string& name = member_.info.name;
    // A frame that did not leave completely cannot have run.
    const bool sent = was_connected && was_sent(*call, &link);
    if (sent) {
      const ErrorCode code =
          why.code() == ErrorCode::kPeerLost ? ErrorCode::kPeerLost : ErrorCode::kOutcomeUnknown;
      fail(*call, Error(code, fmt::format("{} was sent to {}, then the connection broke: {}", function,
                                          name, why.message())));
    } else {
      const ErrorCode code = why.code() == ErrorCode::kUnauthenticated ? ErrorCode::kUnauthenticated
                                                                       : ErrorCode::kUnavailable;
      fail(*call, Error(code, fmt::format("{} was not sent to {} at {}: {}", function, name,
                                          member_.address, why.message())));
    }
    call->future().release();  // the table's
  }
}

void Peer::fail(Call& call, const Error& error) {
  counters_.failed.add();
  call.future().settle_error(error, &runtime_->io);
  note_settled(call);
}

void Peer::close_window(Call& call) {
  window_.close(Access::depth(call), Access::bytes(call));
  if (calls_.empty()) listeners_ = 0;
  if (waiting_for_room_ > 0) room_.notify_all();
}

Error Peer::timeout_error(Call& call, bool queued) {
  const auto limit =
      std::chrono::ceil<std::chrono::milliseconds>(Access::deadline(call) - Access::started(call));
  const Error error(ErrorCode::kTimeout,
                    fmt::format("{} on {}: no reply within {} ms{}", Access::function(call)->name,
                                member_.info.name, limit.count(),
                                queued ? "" : "; the call waited for room and was not sent"));
  return queued ? error : error.before_sending();
}

void Peer::expire(Call& call) {
  Lock lock(mutex_);
  if (calls_.take(Access::id(call)) == nullptr) return;
  close_window(call);
  lock.unlock();
  settle_expired(call);
}

// The callee is told, so that it need not start, or can stop, what nobody waits for.
void Peer::settle_expired(Call& call) {
  runtime_->counters.timeouts.add();
  const uint64_t id = Access::id(call);
  fail(call, timeout_error(call, /*queued=*/true));
  call.future().release();  // the table's
  send_cancel(id);
}

void Peer::send_cancel(uint64_t call_id) {
  Lock lock(mutex_);
  if (!link_) return;
  const detail::Ref<Link> link = link_;
  wire::FrameHeader header{wire::FrameKind::kCancel};
  header.id = call_id;
  link->queue(header);
  const bool connected = state_ == State::kConnected;
  lock.unlock();
  if (connected) flush(link);
}

void Peer::cancel(Call& call) { cancel(Access::id(call)); }

void Peer::cancel(uint64_t call_id) {
  Lock lock(mutex_);
  Call* call = calls_.take(call_id);
  if (!call) return;
  close_window(*call);
  lock.unlock();
  fail(*call, Error(ErrorCode::kCancelled, fmt::format("{} on {} was cancelled",
                                                       Access::function(*call)->name,
                                                       member_.info.name)));
  call->future().release();  // the table's
  send_cancel(call_id);
}

bool Peer::is_pending(uint64_t call_id) {
  Lock lock(mutex_);
  return calls_.contains(call_id);
}

void Peer::close(const Error& why) {
  Lock lock(mutex_);
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  closed_because_ = why;
  std::vector<Call*> calls = calls_.take_all();
  for (Call* call : calls) close_window(*call);
  const detail::Ref<Link> link = std::exchange(link_, {});
  if (link) {
    counters_.bytes_sent += link->sent_bytes();
    counters_.bytes_received += link->received_bytes();
    runtime_->io.unwatch(link->descriptor());
    link->close();
  }
  receiver_ = Receiver::kNobody;
  room_.notify_all();
  lock.unlock();
  runtime_->io.remove(token_);
  for (Call* call : calls) {
    fail(*call, was_sent(*call, link.get()) ? why.after_sending() : why);
    call->future().release();  // the table's
  }
}

const char* Peer::state_name() {
  Lock lock(mutex_);
  switch (state_) {
    case State::kIdle: return "idle";
    case State::kConnecting: return "connecting";
    case State::kConnected: return "connected";
    case State::kClosed: return "closed";
  }
  return "?";
}

uint64_t Peer::bytes_sent() {
  Lock lock(mutex_);
  return counters_.bytes_sent + (link_ ? link_->sent_bytes() : 0);
}

uint64_t Peer::bytes_received() {
  Lock lock(mutex_);
  return counters_.bytes_received + (link_ ? link_->received_bytes() : 0);
}

size_t Peer::outstanding() {
  Lock lock(mutex_);
  return calls_.size();
}

}  // namespace weft::rpc

// CallingLink: its side of the I/O loop: the hello, the heartbeat, timers. calling_link.h says
// where the rest is.
// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/calling/calling_link.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error_without_memory.h"
#include "base/log.h"
#include "wire/hello.h"

namespace weft::rpc {

namespace {
constexpr int kLoopReceives = 64;  // before the loop looks at others again
}

// The client that the I/O loop holds; outlives the link's other owners only inside one callback.
class CallingLink::LoopSide final : public IoClient {
 public:
  explicit LoopSide(CallingLink& link) : link_(link) {}
  void on_event(bool readable, bool writable) override { link_.on_event(readable, writable); }
  void on_time(base::Time now) override { link_.on_time(now); }

 private:
  CallingLink& link_;
};

CallingLink::CallingLink(std::shared_ptr<Runtime> runtime, Member member,
                         std::shared_ptr<SharedWindow> shared, Rest rest)
    : runtime_(std::move(runtime)),
      member_(std::move(member)),
      rest_(rest),
      loop_side_(std::make_shared<LoopSide>(*this)),
      window_(runtime_->options.window_calls, runtime_->options.window_bytes),
      shared_window_(std::move(shared)),
      backoff_(runtime_->self().incarnation ^ member_.incarnation),
      heartbeat_({runtime_->options.heartbeat_interval, runtime_->options.suspect_after,
                  runtime_->options.dead_after},
                 runtime_->clock->now()),
      reception_view_(runtime_->cpus),
      reception_(reception_view_) {
  token_ = runtime_->io.add(loop_side_);
}

void CallingLink::on_event(bool readable, bool writable) {
  detail::Ref<Link> link;  // destroyed outside the lock
  Lock lock(mutex_);
  if (!link_) return;
  link = link_;
  if (!stream_up_ && writable) {
    try {
      link->connection().check_connected();
    } catch (const Error& error) {
      lock.unlock();
      return on_link_lost(link, error, sign_of_failed_connecting(error));
    }
    stream_up_ = true;
  }
  const bool receive = readable && reception_.begin_on_loop();
  lock.unlock();

  try {
    if (writable) flush(link);
    if (receive) receive_on_loop(link);
  } catch (...) {  // no memory
    lock.lock();
    reception_.end_on_loop();
    throw;
  }

  lock.lock();
  reception_.end_on_loop();
  if (link_.get() != link.get()) return;
  update_interest();
  // Callers that were answered above and called again have left their frames for this thread.
  const bool left = state_ == State::kConnected && link->has_queued();
  lock.unlock();
  if (left) flush(link);
}

void CallingLink::receive_on_loop(const detail::Ref<Link>& link) {
  for (int i = 0; i < kLoopReceives; ++i) {
    if (!receive_once(link) || !link->within_frame()) return;
  }
}

bool CallingLink::on_hello(const detail::Ref<Link>& link, wire::Frame& frame) {
  const wire::Hello hello = wire::decode_hello(frame.body);
  Lock lock(mutex_);
  if (link_.get() != link.get()) return false;
  if (state_ != State::kConnecting) throw Error(ErrorCode::kBadMessage, "a second hello");
  if (const std::optional<Error> objection = object_to(hello)) {
    lock.unlock();
    const bool replaced = objection->code() == ErrorCode::kUnauthenticated;
    on_link_lost(link, *objection, replaced ? SignOfLife::kReplaced : SignOfLife::kUnreachable);
    return false;
  }
  link->decoder().expect_any();
  link->agree_on(hello.features);
  // Under the lock: the end of this connection is reported after its beginning.
  runtime_->liveness.on_sign(member_.info.id, SignOfLife::kHeard, {}, {});
  // Nothing from here on needs memory.
  set_state(State::kConnected);
  reception_.on_connected();
  connection_changed_ = runtime_->clock->now();
  connecting_took_.store((connection_changed_ - connect_began_).count(), std::memory_order_relaxed);
  connect_by_ = base::Time::max();
  unused_since_ = connection_changed_;
  backoff_.on_success();
  heartbeat_ = Heartbeat({runtime_->options.heartbeat_interval, runtime_->options.suspect_after,
                          runtime_->options.dead_after},
                         runtime_->clock->now());
  link->open();
  lock.unlock();
  flush(link);
  set_due();
  lock.lock();
  return link_.get() == link.get();
}

// The reason to refuse the callee's hello; nothing if it is as expected.
std::optional<Error> CallingLink::object_to(const wire::Hello& hello) const {
  if (!wire::common_version(hello)) {
    return Error(ErrorCode::kUnavailable, wire::describe_versions(hello));
  }
  if (hello.group != runtime_->group.token || hello.from != member_.info.id ||
      hello.from_incarnation != member_.incarnation) {
    return Error(ErrorCode::kUnauthenticated, fmt::format("another worker answers at {}: \"{}\"",
                                                          member_.address, hello.from_name));
  }
  return std::nullopt;
}

void CallingLink::set_due() {
  Lock lock(mutex_);
  base::Time due = std::min(calls_.earliest_deadline(), connect_by_);
  if (state_ == State::kConnected) {
    due = std::min(due, heartbeat_.next());
    if (rest_ == Rest::kWhenUnused) due = std::min(due, base::later(unused_since_, kRestsAfter));
  }
  // Under the lock, so that a later state is not overwritten by an earlier one.
  runtime_->io.set_due(*loop_side_, due);
}

void CallingLink::expire_until(base::Time now) {
  Lock lock(mutex_);
  const std::vector<Call*> expired = calls_.take_expired(now);
  for (Call* call : expired) forget(*call);
  lock.unlock();
  for (Call* call : expired) settle_expired(*call);
}

// The calls first: what the connection needs may lack memory.
void CallingLink::on_time(base::Time now) {
  expire_until(now);
  detail::Ref<Link> link;  // destroyed outside the lock
  Lock lock(mutex_);
  link = link_;
  std::optional<Error> lost;
  bool ping = false;
  bool suspect = false;
  // A large frame may keep both sides from sending anything else. While the system takes no more
  // bytes than the peer has read, every byte that leaves is a sign of life.
  if (link) {
    const uint64_t sent = link->sent_bytes();
    const bool grew = std::exchange(sent_at_last_time_, sent) != sent;
    if (std::exchange(blocked_at_last_time_, link->blocked()) && grew) heartbeat_.on_received(now);
  }
  const base::Duration silence = heartbeat_.silence(now);
  if (state_ == State::kConnecting && now >= connect_by_) {
    lost = base::error_by(ErrorCode::kUnavailable,
                          [] { return Error(ErrorCode::kUnavailable, "no answer within 5 s"); });
  } else if (may_rest(now)) {
    drop_link();
    set_state(State::kIdle);
    runtime_->liveness.on_sign(member_.info.id, SignOfLife::kEnded, now, "it was not used");
  } else if (state_ == State::kConnected) {
    if (calls_.empty()) heartbeat_.set_idle(true);
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
        lost = base::error_by(ErrorCode::kPeerLost, [silence] {
          return Error(ErrorCode::kPeerLost, fmt::format("no sign of life for {} ms",
                                                         silence / std::chrono::milliseconds(1)));
        });
        break;
    }
    heartbeat_.set_idle(calls_.empty());
    if (ping) let_loop_receive();
  }
  lock.unlock();

  if (suspect) {
    base::log(LogLevel::kWarning, runtime_->name(), "{} has been silent for {} ms",
              member_.info.name, silence / std::chrono::milliseconds(1));
  }
  if (lost) {
    on_link_lost(link, *lost, SignOfLife::kSilent);
  } else if (ping) {
    link->queue(wire::FrameHeader{wire::FrameKind::kPing}, link->lane_for_urgent());
    flush(link);
  }
  set_due();
}

// Under the lock, so no call can begin on a connection that is about to be closed.
bool CallingLink::may_rest(base::Time now) {
  if (rest_ == Rest::kNever || state_ != State::kConnected) return false;
  const uint64_t calls = counters_.calls.value();
  const bool used = std::exchange(calls_at_last_time_, calls) != calls;
  if (used || !calls_.empty() || link_->has_queued()) unused_since_ = now;
  if (now < base::later(unused_since_, kRestsAfter)) return false;
  // The heartbeat of another connection tells whether the member lives.
  const bool others_stand = runtime_->liveness.connections_to(member_.info.id) > 1;
  if (!others_stand) unused_since_ = now;
  return others_stand;
}

void CallingLink::set_state(State state) {
  state_ = state;
  connected_.store(state == State::kConnected, std::memory_order_release);
}

const char* CallingLink::state_name() {
  Lock lock(mutex_);
  switch (state_) {
    case State::kIdle:
      return "idle";
    case State::kConnecting:
      return "connecting";
    case State::kConnected:
      return "connected";
    case State::kClosed:
      return "closed";
  }
  return "?";
}

std::string CallingLink::transport() {
  Lock lock(mutex_);
  return way_;
}

uint64_t CallingLink::bytes_sent() {
  Lock lock(mutex_);
  return counters_.bytes_sent + (link_ ? link_->sent_bytes() : 0);
}

uint64_t CallingLink::bytes_received() {
  Lock lock(mutex_);
  return counters_.bytes_received + (link_ ? link_->received_bytes() : 0);
}

size_t CallingLink::outstanding() {
  Lock lock(mutex_);
  return calls_.size();
}

void CallingLink::describe_calls(std::vector<CallInFlight>& calls, bool reserved_too) {
  Lock lock(mutex_);
  const base::Time now = runtime_->clock->now();
  const bool connecting = state_ == State::kConnecting;
  calls_.for_each([&, link = link_.get()](Call* call) {
    const detail::FunctionEntry& function = *OutgoingCallAccess::function(*call);
    if (function.reserved && !reserved_too) return;
    const char* state = connecting ? "connecting" : was_sent(*call, link) ? "sent" : "unsent";
    const std::chrono::duration<double> age = now - OutgoingCallAccess::started(*call);
    calls.push_back(
        {CallInFlight::Direction::kOutgoing, function.name, member_.info.name, age.count(), state});
  });
}

}  // namespace weft::rpc

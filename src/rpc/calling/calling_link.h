// The calling end of one connection to a worker: the calls that go out on it, the table of those
// unanswered, and who receives the answers. A connection that is lost is made again, as another
// Link, for the next call. (rpc/calling/peer.h has all connections to the worker.)
//
// Receiving (reception.h). A caller that waits receives for itself, so its reply wakes nobody else;
// it settles other callers' replies on the way. Other callers linger for a moment, ready to take
// over when the receiving caller leaves, then sleep in a line. When the receiving caller leaves and
// one caller sleeps, that one is nudged to take over; if several sleep, or that one has slept for
// long, the I/O loop receives for all. Replies that nobody waits for and nobody is told of may lie
// for up to three beats of the pulse before the loop picks them up.
//
// Sending. The caller writes its own frame. If the waiting callers want more CPUs than there are, a
// caller that polls for replies writes the frames of the others between two polls. With several
// calls unanswered already, a call that nobody waits for yet is sent together with the next ones:
// when a reply arrives, somebody waits, enough bytes are together, or at the next pulse.
//
// The sources: calling_link_sending.cpp makes calls, connects and writes;
// calling_link_receiving.cpp waits and receives, decides which thread does it, and has the tick of
// the pulse; calling_link_ending.cpp has lost connections, timeouts, cancels and close();
// calling_link.cpp has the hello, the heartbeat and the timers.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/adaptive_mutex.h"
#include "observe/counter.h"
#include "observe/histogram.h"
#include "rpc/calling/call_table.h"
#include "rpc/calling/outgoing_call_access.h"
#include "rpc/calling/reception.h"
#include "rpc/calling/send_window.h"
#include "rpc/calling/shared_window.h"
#include "rpc/companion.h"
#include "rpc/group/heartbeat.h"
#include "rpc/io/backoff.h"
#include "rpc/io/link.h"
#include "rpc/io/tick_list.h"
#include "rpc/runtime.h"
#include "weft/debug_info.h"
#include "weft/error.h"
#include "wire/hello.h"

namespace weft::rpc {

/// How a call is to be made.
struct CallLimits {
  base::Time asked;      // when the user's thread asked for the call
  base::Time connected;  // the same, or when that thread had waited for its connection
  base::Time deadline = base::Time::max();
  uint32_t depth = 0;
  bool caller_waits = false;
  Note note;  // of the companion
};

struct LinkCounters {
  observe::Counter calls, failed, connects, handovers;
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};  // of links that are gone
  observe::Histogram round_trip;
};

class CallingLink final : public Ticking {
 public:
  /// A connection that may rest is closed when it was not used for kRestsAfter, and is made again
  /// for the next call.
  enum class Rest { kNever, kWhenUnused };
  static constexpr auto kRestsAfter = std::chrono::seconds(60);
  /// `shared`: the window of all connections to the member.
  CallingLink(std::shared_ptr<Runtime> runtime, Member member, std::shared_ptr<SharedWindow> shared,
              Rest rest = Rest::kNever);

  const WorkerInfo& info() const { return member_.info; }

  /// Sends `call` or settles it with the reason why not. May block while the window is full. False:
  /// nothing was done, since this connection was retired.
  bool start(detail::OutgoingCall& call, const detail::FunctionEntry& function, Encoder& arguments,
             const CallLimits& limits);

  // The call's own side.
  bool wait_for(detail::OutgoingCall& call, std::optional<base::Time> until);
  void cancel(detail::OutgoingCall& call);
  void cancel(uint64_t call_id);
  bool is_pending(uint64_t call_id);
  /// A continuation was attached: some thread must receive the reply.
  void ask_for_receiver(detail::OutgoingCall& call);

  bool on_tick() override;

  /// Fails all calls, now and later, with `why`.
  void close(const Error& why);

  LinkCounters& counters() { return counters_; }
  const char* state_name();
  const std::string& address() const { return member_.address; }
  /// How the bytes of its latest link go.
  std::string transport();
  bool is_connected() const { return connected_.load(std::memory_order_acquire); }
  /// Connects if need be, for a thread that can also use another connection. False: not by then.
  bool wait_until_connected(std::chrono::milliseconds limit);
  /// How long connecting took the last time.
  base::Duration connecting_took() const {
    return base::Duration(connecting_took_.load(std::memory_order_relaxed));
  }
  bool connects_since_less_than(base::Duration time);
  /// From now on no call goes over this connection. False: it is connected, or calls wait for it.
  bool retire();
  uint64_t bytes_sent();
  uint64_t bytes_received();
  size_t outstanding();
  void describe_calls(std::vector<CallInFlight>& calls, bool reserved_too);

 private:
  class LoopSide;
  enum class State { kIdle, kConnecting, kConnected, kClosed };
  using Lock = base::AdaptiveLock;
  using Call = detail::OutgoingCall;
  using Receiver = ReceptionView::Receiver;
  using Term = Reception<Call>::Term;

  enum class Sending { kDone, kBroke, kRetired };
  Sending send(Call& call, const detail::FunctionEntry& function, Encoder& arguments,
               const CallLimits& limits, base::Time now);
  bool stage(Encoder& arguments, detail::Ref<Link>& link) WEFT_REQUIRES(mutex_);
  static void drop_originals(Encoder& arguments);
  Sending fail_unsent(Call& call, const Error& error) WEFT_EXCLUDES(mutex_);

  void wait_for_other_writer(Call& call, const Link& link);
  bool settle_if_sent(Call& call, const Link& link);

  // Sending.
  enum class Room { kTaken, kNoneHere, kNoneAtMember };
  enum class Claim { kNone, kMine };
  Room take_room(const CallLimits& limits, size_t bytes, Claim claim) WEFT_REQUIRES(mutex_);
  void give_room_back(Call& call) WEFT_REQUIRES(mutex_);
  // These let go of the lock in between.
  std::optional<Error> make_room(Call& call, const detail::FunctionEntry& function,
                                 const CallLimits& limits, base::Time& now) WEFT_REQUIRES(mutex_);
  bool wait_for_room(const CallLimits& limits, size_t bytes) WEFT_REQUIRES(mutex_);
  void notice_dead_link() WEFT_REQUIRES(mutex_);
  void notice_hang_up() WEFT_REQUIRES(mutex_);
  void connect() WEFT_REQUIRES(mutex_);
  bool queue_call(Call& call, const detail::FunctionEntry& function, const Encoder& arguments,
                  const CallLimits& limits, base::Time now) WEFT_REQUIRES(mutex_);
  bool should_defer(const CallLimits& limits) const WEFT_REQUIRES(mutex_);
  void flush(const detail::Ref<Link>& link, size_t too_much = SIZE_MAX) WEFT_EXCLUDES(mutex_);

  // Receiving. The thread that has the role runs `receive_*`, without the lock.
  bool receive_for(Call& call, base::Time limit, base::Spinner& spinner);
  bool linger(Call& call, base::Spinner& spinner);
  // These two let go of the lock in between.
  void receive_as_caller(base::Time limit, const Call* call) WEFT_REQUIRES(mutex_);
  void let_go(detail::Ref<Link> link) WEFT_REQUIRES(mutex_);
  void enter_line(Call& call) WEFT_REQUIRES(mutex_);
  void leave_line(Call& call) WEFT_EXCLUDES(mutex_);
  detail::Ref<Link> link_to_flush() const WEFT_REQUIRES(mutex_);
  void receive_until(const detail::Ref<Link>& link, Term term, base::Time limit, const Call* call);
  void send_for_others(const detail::Ref<Link>& link);
  void set_polling(const detail::Ref<Link>& link, Term term, bool polling) WEFT_EXCLUDES(mutex_);
  bool receive_once(const detail::Ref<Link>& link) WEFT_EXCLUDES(mutex_);
  void take_frames(const detail::Ref<Link>& link) WEFT_EXCLUDES(mutex_);
  void note_received(const Link& link, bool whole_frame) WEFT_EXCLUDES(mutex_);
  void on_reply(wire::Frame& frame) WEFT_EXCLUDES(mutex_);
  void settle_reply(Call& call, wire::Frame& frame);
  void pass_on_receiving(Term term) WEFT_REQUIRES(mutex_);
  /// False: there is no memory for it.
  bool want_ticks() noexcept;
  void let_loop_receive() WEFT_REQUIRES(mutex_);  // if nobody does
  void update_interest() WEFT_REQUIRES(mutex_);

  // The loop's side.
  void on_event(bool readable, bool writable);
  void on_time(base::Time now);
  /// False: the hello was refused, or the link is lost; nothing behind it counts.
  bool on_hello(const detail::Ref<Link>& link, wire::Frame& frame);
  std::optional<Error> object_to(const wire::Hello& hello) const;
  void receive_on_loop(const detail::Ref<Link>& link);
  void expire_until(base::Time now) WEFT_EXCLUDES(mutex_);
  /// The time of the next on_time().
  void set_due() WEFT_EXCLUDES(mutex_);

  // Ends.
  /// `sign` is reported to Liveness if the connection was never established. If it was, the loss is
  /// reported as kSilent if the heartbeat stopped, else as kEnded.
  void on_link_lost(const detail::Ref<Link>& link, const Error& why,
                    SignOfLife sign = SignOfLife::kUnreachable) WEFT_EXCLUDES(mutex_);
  void on_broken(const detail::Ref<Link>& link) WEFT_EXCLUDES(mutex_);
  void lose(const detail::Ref<Link>& link, const Error& why) WEFT_EXCLUDES(mutex_);
  void lose_without_ticks(const detail::Ref<Link>& link) WEFT_EXCLUDES(mutex_);
  static SignOfLife sign_of_failed_connecting(const Error& error);
  void drop_link() WEFT_REQUIRES(mutex_);
  bool may_rest(base::Time now) WEFT_REQUIRES(mutex_);
  void settle_lost(std::vector<Call*> calls, const Link& link, const Error& why,
                   bool was_connected);
  void fail(Call& call, const Error& error);
  void settle_refused(Call& call, const Error& error);
  void note_settled(Call& call);
  bool expire(Call& call) WEFT_EXCLUDES(mutex_);
  void settle_expired(Call& call);
  void send_cancel(uint64_t call_id) WEFT_EXCLUDES(mutex_);
  void forget(Call& call) WEFT_REQUIRES(mutex_);
  Error timeout_error(Call& call, bool queued);
  bool was_sent(Call& call, const Link* link) const;

  const std::shared_ptr<Runtime> runtime_;
  const Member member_;
  const Rest rest_;
  LinkCounters counters_;
  std::shared_ptr<IoClient> loop_side_;
  uint64_t token_ = 0;

  base::AdaptiveMutex mutex_;  // callers and the receiver contend for it at every call
  void set_state(State state) WEFT_REQUIRES(mutex_);
  State state_ WEFT_GUARDED_BY(mutex_) = State::kIdle;
  std::atomic<bool> connected_{false};  // state_ == kConnected, for those without the lock
  std::optional<Error> closed_because_ WEFT_GUARDED_BY(mutex_);
  bool retired_ WEFT_GUARDED_BY(mutex_) = false;
  detail::Ref<Link> link_ WEFT_GUARDED_BY(mutex_);
  CallTable<Call*> calls_ WEFT_GUARDED_BY(mutex_);
  SendWindow window_ WEFT_GUARDED_BY(mutex_);
  const std::shared_ptr<SharedWindow> shared_window_;
  Backoff backoff_ WEFT_GUARDED_BY(mutex_);
  std::string last_failure_ WEFT_GUARDED_BY(mutex_);
  std::string way_ WEFT_GUARDED_BY(mutex_);
  Heartbeat heartbeat_ WEFT_GUARDED_BY(mutex_);
  uint64_t sent_at_last_time_ WEFT_GUARDED_BY(mutex_) = 0;
  bool blocked_at_last_time_ WEFT_GUARDED_BY(mutex_) = false;
  base::Time connect_began_ WEFT_GUARDED_BY(mutex_){};
  base::Time connection_changed_ WEFT_GUARDED_BY(mutex_){};  // when it was begun, or came up
  std::atomic<base::Duration::rep> connecting_took_{0};
  base::Time unused_since_ WEFT_GUARDED_BY(mutex_){};  // as far as on_time() has noticed
  uint64_t calls_at_last_time_ WEFT_GUARDED_BY(mutex_) = 0;
  base::Time connect_by_ WEFT_GUARDED_BY(mutex_) = base::Time::max();
  // By lane of the link: functions whose names the peer has learnt from frames of that lane.
  std::array<std::vector<bool>, 2> announced_ WEFT_GUARDED_BY(mutex_);
  // The transport has connected; the hello may be on its way.
  bool stream_up_ WEFT_GUARDED_BY(mutex_) = false;
  // Events that the loop watches the connection for.
  uint32_t interest_ WEFT_GUARDED_BY(mutex_) = 0;
  base::Time last_received_ WEFT_GUARDED_BY(mutex_){};
  // Received over this link when the heartbeat last heard of it.
  uint64_t bytes_at_life_ WEFT_GUARDED_BY(mutex_) = 0;
  ReceptionView reception_view_;
  Reception<Call> reception_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc

// Who receives on a connection, who lingers or sleeps until then, who is told when the receiving
// thread leaves, and who writes the frames that were put off.
//
// A core without threads, locks or clock: it is told what happens, and says what to do. CallingLink
// calls it under its lock, and does what it says. What is without the lock has a class of its own,
// ReceptionView.
//
// | receiver        | who reads                           | it ends by                           |
// | --------------- | ----------------------------------- | ------------------------------------ |
// | kNobody         | nobody; the pulse looks after it    | begin(), the loop: call_loop(), ...  |
// | kPollingCaller  | a caller; writes what is put off    | set_polling(), end()                 |
// | kSleepingCaller | a caller, when bytes come           | set_polling(), end()                 |
// | kLoop           | the I/O loop, when bytes come       | begin(): may_begin(), may_glance()   |
//
// A lost connection ends every role; a thread that still has one of an earlier connection changes
// nothing with it.
//
// What holds, in whichever order things happen
// (tests/unit/rpc/calling/reception_simulation_test.cpp):
// 1. One thread at a time reads from a connection.
// 2. A caller that sleeps is woken: while it does, a thread receives or the pulse ticks.
// 3. A reply is received within three ticks, also if nobody waits for it.
// 4. A frame that was put off is sent within three ticks.
// 5. If nothing happens any more, the loop watches the connection and the ticks end.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::rpc {

/// What threads without the lock see, and those of them who linger.
class ReceptionView {
 public:
  enum class Receiver : uint8_t { kNobody, kPollingCaller, kSleepingCaller, kLoop };

  explicit ReceptionView(size_t cpus) : cpus_(cpus) {}

  Receiver receiver() const { return receiver_.load(std::memory_order_relaxed); }

  void begin_lingering() { lingering_.fetch_add(1, std::memory_order_relaxed); }
  void end_lingering() { lingering_.fetch_sub(1, std::memory_order_relaxed); }
  /// Those who linger, the receiving thread and the peer want more CPUs than there are.
  bool is_crowded() const { return lingering_.load(std::memory_order_relaxed) + 2 > cpus_; }

 private:
  template <typename Waiter>
  friend class Reception;

  // Each on a cache line of its own: callers that linger look at the first all the time.
  alignas(64) std::atomic<Receiver> receiver_{Receiver::kNobody};  // changed by Reception
  alignas(64) std::atomic<uint32_t> lingering_{0};
  const size_t cpus_;
};

/// `Waiter` is a call whose caller waits.
template <typename Waiter>
class Reception {
 public:
  using Receiver = ReceptionView::Receiver;
  /// Says of which connection a role is.
  using Term = uint32_t;

  /// Who receives after a caller that leaves.
  struct Successor {
    enum class Kind {
      kNone,    // the role was of an earlier connection
      kCaller,  // `waiter`, which must be nudged; the pulse must tick, in case it gives up just now
      kLoop,    // the loop, which must watch the connection
      kPulse,   // nobody for now; the pulse must tick
    };
    Kind kind = Kind::kNone;
    Waiter* waiter = nullptr;
  };

  /// Calls unanswered from which on a call that nobody waits for is put off.
  static constexpr size_t kSentAtOnce = 8;
  /// Bytes that are worth a system call of their own.
  static constexpr size_t kEnoughToSend = 32 * 1024;

  explicit Reception(ReceptionView& view) : view_(view) {}

  Receiver receiver() const { return view_.receiver(); }
  bool caller_receives() const {
    return receiver() == Receiver::kPollingCaller || receiver() == Receiver::kSleepingCaller;
  }
  bool loop_reads() const { return loop_reads_; }

  // --- the connection ---------------------------------------------------------------------------
  /// The loop watches the new connection.
  void on_connecting() { set(Receiver::kLoop); }
  void on_connected() { connected_ = true; }
  void on_lost() {
    connected_ = false;
    ++term_;
    set(Receiver::kNobody);
  }

  // --- a caller that receives -------------------------------------------------------------------
  bool may_begin() const {
    return connected_ && (receiver() == Receiver::kNobody ||
                          (receiver() == Receiver::kLoop && !loop_reads_ && all_have_slept_long()));
  }
  /// For a caller that only looks once, and does not wait.
  bool may_glance() const { return connected_ && !caller_receives() && !loop_reads_; }
  Term begin(bool polls) {
    set(polls ? Receiver::kPollingCaller : Receiver::kSleepingCaller);
    return term_;
  }
  /// While a caller sleeps, others put off nothing for it. False: the role was of an earlier
  /// connection.
  bool set_polling(Term term, bool polls) {
    if (term != term_) return false;
    begin(polls);
    return true;
  }
  /// `is_served(waiter)`: it is about to leave the line, or needs nobody to receive.
  template <typename F>
  Successor end(Term term, const F& is_served) {
    if (term != term_) return {};
    set(Receiver::kNobody);
    Waiter* waiter = nullptr;
    size_t waiting = 0;
    for (const Sleeper& each : line_) {
      if (is_served(*each.waiter)) continue;
      waiter = each.waiter;
      ++waiting;
    }
    if (waiting == 1 && listeners_ == 0 && !all_have_slept_long())
      return {Successor::Kind::kCaller, waiter};
    if (waiting > 0 || listeners_ > 0) {
      set(Receiver::kLoop);
      return {Successor::Kind::kLoop};
    }
    quiet_ticks_ = 0;
    return {Successor::Kind::kPulse};
  }

  // --- callers that wait while another thread receives ------------------------------------------
  // They linger for a moment (ReceptionView), to be there when the receiving thread leaves. Then
  // they sleep, in line.
  void enter_line(Waiter& waiter) { line_.push_back({&waiter, ticks_}); }
  /// False: it is not there.
  bool leave_line(const Waiter& waiter) {
    const auto found = std::find_if(line_.begin(), line_.end(), [&waiter](const Sleeper& each) {
      return each.waiter == &waiter;
    });
    if (found == line_.end()) return false;
    line_.erase(found);
    return true;
  }
  /// Everybody who waits for this one: it was answered.
  void clear_line_of(const Waiter& waiter) {
    std::erase_if(line_, [&waiter](const Sleeper& each) { return each.waiter == &waiter; });
  }

  // --- those who are told by another thread -----------------------------------------------------
  void add_listener() { ++listeners_; }
  void remove_listener() { --listeners_; }

  // --- the loop ---------------------------------------------------------------------------------
  /// Somebody wants replies who does not receive. True: the loop must watch from now on.
  bool call_loop() {
    if (!connected_ || receiver() != Receiver::kNobody) return false;
    set(Receiver::kLoop);
    return true;
  }
  /// Bytes have come while the loop watched. False: a caller has taken over meanwhile and reads.
  bool begin_on_loop() {
    loop_reads_ = !caller_receives();
    if (loop_reads_) set(Receiver::kLoop);
    return loop_reads_;
  }
  void end_on_loop() { loop_reads_ = false; }

  // --- the pulse --------------------------------------------------------------------------------
  void on_received() { ++receives_; }

  struct Tick {
    bool loop_begins = false;  // the loop must watch from now on
    bool goes_on = false;      // the pulse must tick again
  };
  Tick on_tick(bool has_calls, bool has_put_off) {
    ++ticks_;
    if (!connected_) return {};
    quiet_ticks_ = receives_ == receives_at_tick_ ? quiet_ticks_ + 1 : 0;
    receives_at_tick_ = receives_;
    const bool loop_begins =
        quiet_ticks_ >= (has_calls ? 1 : kQuietTicksBeforeWatching) && call_loop();
    return {loop_begins, has_put_off || receiver() != Receiver::kLoop || !all_have_slept_long()};
  }

  // --- who writes -------------------------------------------------------------------------------
  /// A call that was queued just now.
  struct Queued {
    size_t calls = 0;         // unanswered, this one included
    size_t unsent_bytes = 0;  // its own included
    bool blocked = false;     // the connection takes no more bytes just now
    bool caller_waits = false;
  };
  /// Whether another thread sends it, together with others.
  bool puts_off(const Queued& queued) const {
    // The loop is handing out replies; it sends the next calls of the answered callers together.
    // Unless there are no others: then the loop may just as well be finding out that the connection
    // broke.
    if (loop_reads_) return queued.calls > 1;
    if (queued.unsent_bytes >= kEnoughToSend || queued.blocked) return false;
    // While there are CPUs enough, each caller had better send for itself.
    if (receiver() == Receiver::kPollingCaller && view_.is_crowded()) return true;
    return !queued.caller_waits && queued.calls >= kSentAtOnce;
  }
  /// Whether a caller must send what was put off before it sleeps, or lingers: somebody wants
  /// replies now. If not, the loop sends it, or the caller that polls.
  bool sends_before_sleeping() const { return !loop_reads_; }
  bool sends_before_lingering() const {
    return !loop_reads_ && receiver() != Receiver::kPollingCaller;
  }

 private:
  static constexpr int kQuietTicksBeforeWatching = 10;
  static constexpr uint32_t kTicksOfLongSleep = 10;

  struct Sleeper {
    Waiter* waiter;
    uint32_t since;  // tick
  };

  void set(Receiver who) { view_.receiver_.store(who, std::memory_order_relaxed); }
  // No caller in line is likely to be answered just now, so the loop need not receive for them
  // while a caller does.
  bool all_have_slept_long() const {
    return line_.empty() || ticks_ - line_.back().since >= kTicksOfLongSleep;
  }

  ReceptionView& view_;
  bool connected_ = false;
  bool loop_reads_ = false;
  Term term_ = 0;
  std::vector<Sleeper> line_;  // callers that sleep, in order of arrival
  size_t listeners_ = 0;
  uint32_t ticks_ = 0;
  int quiet_ticks_ = 0;
  uint32_t receives_ = 0;
  uint32_t receives_at_tick_ = 0;
};

}  // namespace weft::rpc

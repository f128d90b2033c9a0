// One call this worker waits on, from the moment it is made until it has exactly one outcome.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "weft/codec.h"
#include "weft/detail/arrival.h"
#include "weft/export.h"
#include "weft/future.h"

namespace weft::rpc {
class CallingLink;
class Link;
class Companion;
struct OutgoingCallAccess;
}  // namespace weft::rpc

namespace weft::detail {

struct FunctionEntry;

/// Where a frame ends in the bytes of its lane of a connection.
struct FramePosition {
  bool urgent = false;  // which of the two lanes
  uint64_t byte = 0;
};

/// The untyped half. Its life is that of the future it settles.
class WEFT_API OutgoingCall {
 public:
  OutgoingCall();
  virtual ~OutgoingCall();
  OutgoingCall(const OutgoingCall&) = delete;
  OutgoingCall& operator=(const OutgoingCall&) = delete;

  virtual FutureCore& future() = 0;
  /// Decodes the result and settles the future with it. Throws kBadMessage if it does not decode.
  virtual void settle_with(Decoder& result, ContinuationSink* sink) = 0;
  /// There will be no result. Must be quick.
  virtual void on_failed(const Error& error) noexcept { (void)error; }
  /// The error to settle the future with; nothing if the call will settle it itself, later.
  virtual std::optional<Error> translate(const Error& error) { return error; }

 protected:
  /// The waiting thread receives its own reply, or sleeps while another one receives.
  bool wait_for_reply(std::optional<SteadyTime> until);
  void cancel_call();
  void ask_for_receiver();
  /// Marks that this call needs nothing more from the connection: a continuation will settle it.
  /// Waiting threads then only sleep, and the deadline no longer ends the call.
  void leave_to_continuation() { left_to_continuation_.store(true, std::memory_order_release); }

 private:
  friend struct rpc::OutgoingCallAccess;
  virtual bool sleep(std::optional<SteadyTime> until) = 0;
  virtual void mark() = 0;
  virtual void nudge() = 0;

  Ref<rpc::CallingLink> link_;
  Ref<rpc::Companion> companion_;  // until there is an outcome
  const FunctionEntry* function_ = nullptr;
  uint64_t id_ = 0;
  FramePosition ends_at_;
  size_t bytes_ = 0;
  uint32_t depth_ = 0;
  // While the thread that makes the call could still send it on another connection.
  enum Phase : uint8_t { kStarting, kMakeAnew, kStarted };
  std::atomic<uint8_t> phase_{kStarting};
  std::atomic<bool> left_to_continuation_{false};
  bool listened_to_ = false;           // somebody is to be told of the outcome
  std::atomic<uint32_t> in_line_{0};   // threads that sleep while another one receives
  std::vector<Ref<RefCounted>> kept_;  // what the arguments refer to, until there is an outcome
  SteadyTime started_{};
  SteadyTime deadline_ = SteadyTime::max();
};

template <typename R>
class TypedCall : public FutureState<Stored<R>>, public OutgoingCall {
 public:
  FutureCore& future() override { return *this; }
  void settle_with(Decoder& result, ContinuationSink* sink) override {
    if constexpr (std::is_void_v<R>) {
      result.finish();
      this->settle_value(Unit{}, sink);
    } else {
      R value = Codec<R>::decode(result);
      result.finish();
      if (result.arrival() && result.arrival()->must_wait()) {
        settle_when_ready(std::move(value), result.arrival()->take_needed(), sink);
      } else {
        this->settle_value(std::move(value), sink);
      }
    }
  }
  bool wait_until(std::optional<SteadyTime> until) override {
    return this->ready() || this->wait_for_reply(until);
  }
  void cancel() override { this->cancel_call(); }

 private:
  // The sink is the I/O loop, which the connection of this call keeps.
  void settle_when_ready(Stored<R> value, std::vector<Future<void>> needed,
                         ContinuationSink* sink) {
    this->leave_to_continuation();
    when_all(std::move(needed), [self = Ref<TypedCall>::share(this), value = std::move(value),
                                 sink](std::exception_ptr error) mutable {
      if (error) {
        self->settle_error(std::move(error), sink);
      } else {
        self->settle_value(std::move(value), sink);
      }
    });
  }
  bool sleep(std::optional<SteadyTime> until) override { return this->sleep_if_marked(until); }
  void mark() override { this->mark_sleeper(); }
  void nudge() override { this->wake_sleepers(); }
  void on_attached() override { this->ask_for_receiver(); }
};

}  // namespace weft::detail

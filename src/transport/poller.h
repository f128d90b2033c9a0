// Waiting for many connections and listeners at once.
//
// The system watches most sources (transport/event_source.h). The others are watched here as long
// as they are awake, that is from the moment when one of them gave a sign until wait() finds
// nothing ready in it and arms it: what lies ready is seen without a system call, and a source that
// sleeps costs nothing.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "transport/event_source.h"
#include "transport/private_descriptor.h"

namespace weft::transport {

/// One event: the token given to add() and what the source is ready for.
struct PollEvent {
  uint64_t token;
  bool readable;  // also if it is closed or has an error; receive() tells which
  bool writable;
};

class Poller {
 public:
  /// Throws kLimitExceeded when the process has no descriptor left.
  Poller();

  // Any thread. `interest`: bits of Interest. `token`: below 2^48. A source must be removed before
  // it is destroyed.
  bool add(EventSource& source, uint32_t interest, uint64_t token);
  void change(EventSource& source, uint32_t interest, uint64_t token);
  void remove(EventSource& source, uint64_t token);

  /// Ends a wait(); may be called by any thread. Several calls may end only one wait().
  void wake();

  /// Waits until a source is ready, wake() was called or `limit` passed (nullopt: no limit). Only
  /// one thread may call it. An event is reported for as long as it lasts and is of interest.
  std::span<const PollEvent> wait(std::optional<base::Duration> limit);
  /// The events that are seen without a system call. Called by the thread that calls wait().
  std::span<const PollEvent> look();
  /// Whether wait() would return at once. Any thread.
  bool has_events() const;
  /// Readable when wait() would return at once, if the system watches all sources.
  int descriptor() const { return epoll_.get(); }

 private:
  static constexpr uint64_t kWakeToken = UINT64_MAX;
  static constexpr int kBatch = 64;
  /// While awake sources have something, the system is asked once in so many calls of wait().
  static constexpr uint32_t kCallsPerLook = 8;

  /// A source that the system does not watch.
  struct Watched {
    EventSource* source;
    uint32_t interest;
    uint64_t token;
    bool awake;
    uint64_t tag;  // by which the system reports its signs
  };
  // A tag is the token and, above it, a number that differs from that of the token's source before:
  // a sign that was given to that one means nothing to this one.
  static constexpr int kTokenBits = 48;
  static constexpr uint64_t kTokenMask = (uint64_t{1} << kTokenBits) - 1;

  static constexpr uint64_t kTags = 0x7ffe;

  uint64_t enter(EventSource& source, uint64_t token);
  std::optional<uint64_t> tag_of(const EventSource& source, uint64_t token) const;
  void forget(EventSource& source, uint64_t token);
  void watch(EventSource& source, uint32_t interest, uint64_t token);
  void note_awake(Watched& watched) WEFT_REQUIRES(mutex_);
  bool has_awake() const { return awake_count_.load(std::memory_order_seq_cst) != 0; }
  size_t look_at_awake(bool arms);
  void take_wake();
  std::optional<PollEvent> event_of(const epoll_event& raw);
  static PollEvent event_of_descriptor(const epoll_event& raw);

  PrivateDescriptor epoll_;
  PrivateDescriptor wake_;
  std::array<epoll_event, kBatch> raw_;
  std::array<PollEvent, 2 * kBatch> events_;
  uint32_t calls_ = 0;  // of wait() that found an awake source ready

  mutable base::Mutex mutex_;
  // Sources that the system does not watch, by token. Those that are not awake are armed. awake_
  // and still_ have room for all of them, so that a thread that waits needs no memory.
  std::unordered_map<uint64_t, Watched> watched_ WEFT_GUARDED_BY(mutex_);
  std::vector<uint64_t> awake_ WEFT_GUARDED_BY(mutex_);  // tokens
  std::vector<uint64_t> still_ WEFT_GUARDED_BY(mutex_);  // look_at_awake()'s
  uint64_t next_tag_ WEFT_GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> awake_count_{0};  // changed under the mutex
};

}  // namespace weft::transport

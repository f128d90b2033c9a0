// What threads wait for: connections and listeners.
//
// A thread waits for one source with wait(), for many with a Poller. Nobody else polls the
// descriptor of a source: for some sources it tells only what they were armed for.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace weft::transport {

/// What a thread wants to know; bits.
enum Interest : uint32_t { kNothing = 0, kReadable = 1, kWritable = 2 };

struct Readiness {
  bool readable = false;  // also if it is closed or has an error; receive() tells which
  bool writable = false;
  bool hung_up = false;  // the other side sends nothing more; what it has sent may be unread

  bool any() const { return readable || writable; }
};

class EventSource {
 public:
  virtual ~EventSource() = default;

  /// Waits until something of `interest` is ready or `limit` has passed (nullopt: no limit). Any
  /// thread; several at once if the system watches the source.
  virtual Readiness wait(uint32_t interest, std::optional<base::Duration> limit);

 protected:
  friend class Poller;

  /// The same number as long as the source exists.
  virtual int descriptor() const = 0;

  // A source that the system watches is readable and writable when its descriptor is. Other sources
  // have a peer that gives signs, bytes for the descriptor, if it was asked to: by arm(), for each
  // time once. A Poller arms them before it sleeps, and each sign that comes wakes it, also if
  // earlier ones have not been read. These are called by one thread at a time.

  virtual bool is_watched_by_system() const { return true; }
  /// Asks the peer to give a sign as soon as something of `interest` is ready.
  /// Returns what is ready already; then the peer need not have been asked.
  virtual Readiness arm(uint32_t) { return {}; }
  /// What is ready, without asking anybody and without a system call.
  virtual Readiness look(uint32_t) const { return {}; }
  /// A sign has come, or, if `hung_up`, the descriptor's other end is closed. The source need not
  /// read each sign, but has to see to it that there is room for the next one.
  virtual void take_sign([[maybe_unused]] bool hung_up) {}
};

}  // namespace weft::transport

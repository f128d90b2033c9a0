// Waiting for many descriptors at once.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/clock.h"
#include "transport/private_descriptor.h"

namespace weft::transport {

/// One event: the token given to add() and what the descriptor is ready for.
struct PollEvent {
  uint64_t token;
  bool readable;  // also if it is closed or has an error; receive() tells which
  bool writable;
};

class Poller {
 public:
  enum Interest : uint32_t {
    kNothing = 0,
    kReadable = EPOLLIN | EPOLLRDHUP,
    kWritable = EPOLLOUT,
  };

  /// Throws kLimitExceeded when the process has no descriptor left.
  Poller();

  bool add(int descriptor, uint32_t interest, uint64_t token);
  void change(int descriptor, uint32_t interest, uint64_t token);
  void remove(int descriptor);

  /// Ends a wait(); may be called by any thread. Several calls may end only one wait().
  void wake();

  /// Waits until a descriptor is ready, wake() was called or `limit` passed (nullopt: no limit).
  /// Only one thread may call it.
  std::span<const PollEvent> wait(std::optional<base::Duration> limit);
  /// Whether wait() would return at once. Any thread.
  bool has_events() const;

 private:
  static constexpr uint64_t kWakeToken = UINT64_MAX;
  static constexpr int kBatch = 64;

  PrivateDescriptor epoll_;
  PrivateDescriptor wake_;
  std::array<epoll_event, kBatch> raw_;
  std::array<PollEvent, kBatch> events_;
};

/// Waits until `descriptor` is readable (or writable, if asked for) or `limit` passed.
struct Readiness {
  bool readable = false;
  bool writable = false;
  bool hung_up = false;  // the other side sends nothing more; what it has sent may be unread
};
enum class WaitFor { kReadable, kReadableOrWritable };
Readiness wait_for_descriptor(int descriptor, WaitFor what, std::optional<base::Duration> limit);

}  // namespace weft::transport

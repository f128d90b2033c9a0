// A timer of the I/O loop.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/room.h"
#include "rpc/io/io_loop.h"

namespace weft::rpc {

/// Calls `ring` at the time that was set last, on a thread that may block. One set() causes at most
/// one ring, but a ring that throws std::bad_alloc is repeated after a moment.
class Alarm final : public IoClient, public std::enable_shared_from_this<Alarm> {
 public:
  static std::shared_ptr<Alarm> make(IoLoop& io, std::function<void()> ring) {
    auto alarm = std::make_shared<Alarm>(io, std::move(ring));
    alarm->registration_ = io.add(alarm);
    return alarm;
  }
  Alarm(IoLoop& io, std::function<void()> ring) : io_(io), ring_(std::move(ring)) {}

  void set(base::Time due) noexcept { io_.set_due(*this, due); }
  /// Sets the alarm unless it rings by `due` anyway.
  void set_by(base::Time due) noexcept {
    if (this->due() > due) set(due);
  }
  /// The loop forgets the alarm, which may be ringing meanwhile.
  void remove() {
    set(base::Time::max());
    io_.remove(registration_);
  }

  void on_event(bool, bool) override {}
  // The loop has cleared the due time. Clearing it here again could erase another thread's set().
  void on_time(base::Time) override {
    io_.post_task([self = shared_from_this()] { self->ring(); });
  }

 private:
  void ring() {
    try {
      ring_();
    } catch (const std::bad_alloc& error) {
      base::log(LogLevel::kError, "io", "an alarm rings again: {}", error.what());
      set_by(io_.clock().now() + base::kMomentWithoutMemory);
    }
  }

  IoLoop& io_;
  const std::function<void()> ring_;
  uint64_t registration_ = 0;
};

}  // namespace weft::rpc

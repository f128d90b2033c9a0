// Wakes a part of an agent at a time it sets.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "rpc/io_loop.h"

namespace weft::rpc {

/// Calls `ring` on the I/O loop's leader, which has no time: once for each set().
class Alarm final : public IoClient {
 public:
  static std::shared_ptr<Alarm> make(IoLoop& io, std::function<void()> ring) {
    auto alarm = std::make_shared<Alarm>(io, std::move(ring));
    alarm->token_ = io.add(alarm);
    return alarm;
  }
  Alarm(IoLoop& io, std::function<void()> ring) : io_(io), ring_(std::move(ring)) {}

  void set(base::Time due) { io_.set_due(*this, due); }
  /// The loop forgets it; it may be ringing meanwhile.
  void remove() {
    set(base::Time::max());
    io_.remove(token_);
  }

  void on_event(bool, bool) override {}
  // The loop has cleared the due time. To clear it here again could erase another thread's set().
  void on_time(base::Time) override { ring_(); }

 private:
  IoLoop& io_;
  const std::function<void()> ring_;
  uint64_t token_ = 0;
};

}  // namespace weft::rpc

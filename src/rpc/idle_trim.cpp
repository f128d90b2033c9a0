// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/idle_trim.h"

#include <malloc.h>

#include "arena/arena.h"

namespace weft::rpc {

uint64_t IdleTrim::activity() const {
  return runtime_.counters.outstanding.begun() + runtime_.counters.serving.begun();
}

void IdleTrim::on_tick() {
  if (watching_.load(std::memory_order_acquire)) return;
  const uint64_t now = activity();
  if (now == trimmed_at_.load(std::memory_order_relaxed)) return;
  watching_.store(true, std::memory_order_relaxed);
  seen_.store(now, std::memory_order_relaxed);
  if (!alarm_) {
    alarm_ = Alarm::make(runtime_.io, [weak = weak_from_this()] {
      if (const auto trim = weak.lock()) trim->look();
    });
  }
  alarm_->set(runtime_.clock->now() + kIdle);
}

// When the alarm rings: sets it again, or gives memory back and leaves it to the next tick.
void IdleTrim::look() {
  const uint64_t now = activity();
  if (arena::Arena* arena = arena::Arena::existing()) arena->tidy();
  if (now != seen_.exchange(now, std::memory_order_relaxed)) {
    alarm_->set(runtime_.clock->now() + kIdle);
    return;
  }
  runtime_.pool->clear();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  trimmed_at_.store(now, std::memory_order_relaxed);
  watching_.store(false, std::memory_order_release);
}

// The pulse and the loop have stopped.
void IdleTrim::stop() {
  if (alarm_) alarm_->remove();
}

}  // namespace weft::rpc

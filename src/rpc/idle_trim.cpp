// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/idle_trim.h"

#include <malloc.h>

#include <new>

#include "arena/arena.h"

namespace weft::rpc {

namespace {
bool has_more(arena::Arena& arena) {
  try {
    return arena.tidy() == arena::Arena::Tidied::kInPart;
  } catch (const std::bad_alloc&) {
    return true;
  }
}
}  // namespace

uint64_t IdleTrim::activity() const {
  return runtime_.counters.outstanding.begun() + runtime_.counters.serving.begun();
}

void IdleTrim::on_tick() {
  if (watching_.load(std::memory_order_acquire)) return;
  const uint64_t now = activity();
  if (now == trimmed_at_.load(std::memory_order_relaxed)) return;
  seen_.store(now, std::memory_order_relaxed);
  if (!alarm_) {
    alarm_ = Alarm::make(runtime_.io, [weak = weak_from_this()] {
      if (const auto trim = weak.lock()) trim->look();
    });
  }
  watching_.store(true, std::memory_order_relaxed);
  look_later();
}

void IdleTrim::look_later() { alarm_->set(runtime_.clock->now() + kIdle); }

// When the alarm rings: gives memory back if the agent is idle. Sets the alarm again if the agent
// is not, or if the arena will have more to give back; else leaves that to the next tick.
void IdleTrim::look() {
  const uint64_t now = activity();
  arena::Arena* const arena = arena::Arena::existing();
  const bool arena_has_more = arena && has_more(*arena);
  const bool idle = now == seen_.exchange(now, std::memory_order_relaxed);
  if (idle && now != trimmed_at_.exchange(now, std::memory_order_relaxed)) {
    runtime_.pool->clear();
#ifdef __GLIBC__
    malloc_trim(0);
#endif
  }
  if (!idle || arena_has_more) {
    look_later();
  } else {
    watching_.store(false, std::memory_order_release);
  }
}

// The pulse has stopped; look() may still run on the loop.
void IdleTrim::stop() {
  if (alarm_) alarm_->remove();
}

}  // namespace weft::rpc

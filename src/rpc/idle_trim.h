// Gives memory back to the system when an agent has become idle: the blocks its receive pool keeps,
// and what malloc keeps in the arenas of its threads.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "rpc/io/alarm.h"
#include "rpc/runtime.h"

namespace weft::rpc {

class IdleTrim : public std::enable_shared_from_this<IdleTrim> {
 public:
  /// An agent is idle when no call of users was made or served for so long.
  static constexpr auto kIdle = std::chrono::seconds(10);

  explicit IdleTrim(Runtime& runtime) : runtime_(runtime) {}

  /// At every tick of the pulse, which beats while something happens. An idle agent is not woken.
  void on_tick();
  void stop();

 private:
  uint64_t activity() const;
  void look();
  void look_later();

  Runtime& runtime_;
  std::shared_ptr<Alarm> alarm_;  // of the pulse's thread, until stop()
  std::atomic<bool> watching_{false};
  std::atomic<uint64_t> trimmed_at_{0};  // the activity at which memory was given back last
  std::atomic<uint64_t> seen_{0};        // the activity when the alarm was set
};

}  // namespace weft::rpc

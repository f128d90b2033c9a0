// SPDX-License-Identifier: BSD-3-Clause
#include "base/process_exit.h"

#include <unistd.h>

#include <atomic>

namespace weft::base {

namespace {
std::atomic<pid_t> exiting_thread{0};
}

void note_exit() noexcept { exiting_thread.store(::gettid(), std::memory_order_release); }

void stay_if_process_exits() noexcept {
  const pid_t exiting = exiting_thread.load(std::memory_order_acquire);
  const pid_t here = ::gettid();
  if (exiting == 0 || exiting == here || here != ::getpid()) return;
  for (;;) ::pause();
}

}  // namespace weft::base

// Waits until a deadline for work that has no deadline of its own.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <future>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/clock.h"

namespace weft::rendezvous {

/// Runs `work` on a thread of its own and returns its result; rethrows what it throws. Returns
/// nothing if `work` is not done by the deadline. The thread then goes on, so `work` must own
/// everything that it uses.
template <typename Work>
std::optional<std::invoke_result_t<Work>> run_until(base::Time deadline, Work work) {
  std::packaged_task<std::invoke_result_t<Work>()> task(std::move(work));
  auto result = task.get_future();
  std::thread thread(std::move(task));
  if (result.wait_until(deadline) == std::future_status::timeout) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return result.get();
}

}  // namespace weft::rendezvous

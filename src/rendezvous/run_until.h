// Work that cannot be told when to stop, waited for until a deadline.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <future>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/clock.h"

namespace weft::rendezvous {

/// The result of `work`, which runs on a thread of its own; rethrows what it throws. Nothing if it
/// is not done by the deadline: the thread then goes on alone, so `work` owns everything that it
/// uses.
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

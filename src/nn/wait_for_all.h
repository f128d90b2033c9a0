// Waits for futures whose operations use memory of the caller.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <optional>
#include <vector>

#include "weft/future.h"

namespace weft::nn {

/// Returns when all have an outcome: none of the operations reads or writes a tensor any more.
template <typename T>
void wait_for_outcomes(const std::vector<Future<T>>& futures) {
  for (const Future<T>& each : futures) {
    weft::detail::FutureAccess::state(each).wait_until(std::nullopt);
  }
}

/// The same; then throws the error of the first that has failed, if one has.
template <typename T>
void wait_for_all(const std::vector<Future<T>>& futures) {
  wait_for_outcomes(futures);
  for (const Future<T>& each : futures) {
    const auto& state = weft::detail::FutureAccess::state(each);
    if (state.failed()) state.rethrow();
  }
}

}  // namespace weft::nn

// Errors of calls for which there may be no memory.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <algorithm>
#include <array>
#include <new>

#include "weft/error.h"

namespace weft::rpc {

/// Errors with a fixed text, which are there before they are needed.
inline const std::array kErrorsWithoutText = [] {
  constexpr char kText[] = "the call failed, and there was no memory to say how";
  return std::array{
      Error(ErrorCode::kUnavailable, kText),    Error(ErrorCode::kUnauthenticated, kText),
      Error(ErrorCode::kOutcomeUnknown, kText), Error(ErrorCode::kPeerLost, kText),
      Error(ErrorCode::kTimeout, kText),        Error(ErrorCode::kCancelled, kText),
      Error(ErrorCode::kShuttingDown, kText),   Error(ErrorCode::kBadMessage, kText),
      Error(ErrorCode::kRemoteError, kText),    Error(ErrorCode::kLimitExceeded, kText)};
}();

/// What `make` returns; if it lacks memory, an error of this code with a fixed text. A call that is
/// in no table any more must be settled in any case.
template <typename F>
Error error_by(ErrorCode code, const F& make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    const auto found = std::find_if(kErrorsWithoutText.begin(), kErrorsWithoutText.end(),
                                    [code](const Error& each) { return each.code() == code; });
    return found == kErrorsWithoutText.end() ? kErrorsWithoutText.back() : *found;
  }
}

}  // namespace weft::rpc

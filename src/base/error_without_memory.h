// Errors for which there may be no memory.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <utility>

#include "weft/error.h"

namespace weft::base {

inline constexpr size_t kErrorCodes = static_cast<size_t>(ErrorCode::kStorageFailed) + 1;
inline constexpr char kNoText[] = "it failed, and there was no memory to say how";

// Made before it is needed. Leaked: something may fail while the process exits.
inline const std::array<Error, kErrorCodes>& kErrorsWithoutText =
    *[]<size_t... Code>(std::index_sequence<Code...>) {
  return new std::array<Error, kErrorCodes>{Error(static_cast<ErrorCode>(Code), kNoText)...};
}
(std::make_index_sequence<kErrorCodes>());

/// An error of this code with a fixed text. Takes no memory.
inline const Error& error_without_text(ErrorCode code) noexcept {
  return kErrorsWithoutText[static_cast<size_t>(code)];
}

/// What `make` returns; if it lacks memory, an error of this code with a fixed text. What nobody
/// else knows of any more must get its outcome in any case.
template <typename F>
Error error_by(ErrorCode code, const F& make) noexcept {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return error_without_text(code);
  }
}

}  // namespace weft::base

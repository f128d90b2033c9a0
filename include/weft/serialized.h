// Objects that process one remote call at a time.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

namespace weft {

/// Whether an object of this class processes one remote call at a time, in the order in which each
/// caller's calls arrive; no thread waits for its turn. Say it in the class
/// (`static constexpr bool kSerialized = true;`) or by specializing this. Otherwise remote calls to
/// one object run at the same time, and it must be thread-safe.
///
/// The turn of a method that returns a Future ends when the method returns, not when the future
/// completes: such a method may wait for calls that come later (a batch that fills up).
template <typename T>
inline constexpr bool serialized = [] {
  if constexpr (requires { T::kSerialized; })
    return T::kSerialized;
  else
    return false;
}();

}  // namespace weft

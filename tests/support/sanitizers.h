// What tests must know of the sanitizers they may run under.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

namespace weft::test {

/// Bounds are those of a plain build; sanitizers take their share.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlowness = 10;
#else
inline constexpr int kSlowness = 1;
#endif
/// Resident memory shows what is held. Under a sanitizer it does not: what is freed stays, and its
/// own records grow with every thread and connection.
inline constexpr bool kMemoryShows = kSlowness == 1;

}  // namespace weft::test

// Turns a failed system call into an exception.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cerrno>
#include <system_error>

namespace bench {

/// Returns `result`; throws with errno and the call's name when it is negative.
template <typename Result>
Result check_system(Result result, const char* call) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), call);
  return result;
}

}  // namespace bench

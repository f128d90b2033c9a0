// The call that the function running on this thread serves.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <optional>

#include "weft/export.h"
#include "weft/worker_info.h"

namespace weft::current_call {

/// Whether this thread runs on behalf of a call (a handler, or a continuation made in one).
WEFT_API bool exists();
/// True once nobody waits for the result any more: the caller gave up, timed out or died. A long
/// function should look now and then and return early.
WEFT_API bool cancelled();
/// Time left before the caller gives up; nothing if it set no deadline. Calls made from here
/// inherit it.
WEFT_API std::optional<std::chrono::nanoseconds> remaining();
/// Who called. Requires exists().
WEFT_API WorkerInfo caller();

}  // namespace weft::current_call

// Where Weft's few log lines go.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <string_view>

#include "weft/export.h"

namespace weft {

enum class LogLevel : int { kInfo = 0, kWarning = 1, kError = 2 };

using LogSink = std::function<void(LogLevel, std::string_view line)>;

/// Replaces the sink, which by default writes warnings and errors to standard error as one line
/// each (WEFT_LOG=info shows all, WEFT_LOG=off none). Called from any thread; must not block.
WEFT_API void set_log_sink(LogSink sink);

}  // namespace weft

// Log lines: rare events an operator wants to see.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string_view>

#include <fmt/format.h>

#include "weft/log.h"

namespace weft::base {

void log_formatted(LogLevel level, std::string_view who, fmt::string_view format,
                   fmt::format_args arguments) noexcept;

/// `who` is the worker's name; several agents may live in one process. Whoever logs is often in the
/// middle of something that has failed: neither the lack of memory for the line nor what a user's
/// sink throws is added to that.
template <typename... T>
void log(LogLevel level, std::string_view who, fmt::format_string<T...> format,
         T&&... arguments) noexcept {
  log_formatted(level, who, format, fmt::make_format_args(arguments...));
}

}  // namespace weft::base

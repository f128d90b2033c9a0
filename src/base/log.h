// Log lines: rare events an operator wants to see.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>

#include "weft/log.h"

namespace weft::base {

/// `who` is the worker's name; several agents may live in one process.
void log(LogLevel level, const std::string& who, const std::string& line);

}  // namespace weft::base

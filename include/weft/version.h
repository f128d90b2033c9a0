// Which Weft this is. CMakeLists.txt reads the version from here.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "weft/export.h"

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

/// For the preprocessor: `#if WEFT_VERSION >= 10203` is 1.2.3 or later.
#define WEFT_VERSION (WEFT_VERSION_MAJOR * 10000 + WEFT_VERSION_MINOR * 100 + WEFT_VERSION_PATCH)

namespace weft {

/// The version of the library that the program runs with, "1.2.3"; the macros are that of the
/// headers it was compiled with.
WEFT_API const char* version() noexcept;

}  // namespace weft

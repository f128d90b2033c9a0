// Named values: what the state of an optimizer, of a module or of a run is written down as.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "weft/codec.h"

namespace weft {

using RecordValue = std::variant<bool, int64_t, double, std::string, at::Tensor>;

/// Travels like any value and can be stored; see weft/checkpoint.h.
using Record = std::map<std::string, RecordValue>;

}  // namespace weft

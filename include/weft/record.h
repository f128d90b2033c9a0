// Named values. The state of an optimizer, of a module or of a run is written as records.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "weft/codec.h"

namespace weft {

using RecordValue = std::variant<bool, int64_t, double, std::string, at::Tensor>;

/// Can be an argument or a result of a call, and can be stored in a checkpoint.
using Record = std::map<std::string, RecordValue>;

}  // namespace weft

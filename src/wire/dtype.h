// Numbers of element types on the wire. They are Weft's own: libtorch's may change between
// versions.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

namespace weft::wire {

/// Nothing for a type that does not travel (quantized types).
std::optional<uint8_t> dtype_to_wire(c10::ScalarType type);
/// Nothing for a number this build does not know.
std::optional<c10::ScalarType> dtype_from_wire(uint8_t number);

}  // namespace weft::wire

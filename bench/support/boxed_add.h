// The anchor for pipelined additions: at::add of four floats through the dispatcher, boxed, in one
// process.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>

namespace bench {

/// Mean microseconds of one addition.
double boxed_add_microseconds(size_t count);

}  // namespace bench

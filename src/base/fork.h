// Processes forked from a worker. The child has no agent: its copies of the parent's agents are
// left alone, and the connections they share with the parent's are closed in the child, so that the
// parent's peers notice when the parent ends.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>

namespace weft::base {

/// How many forks lie between the process that loaded Weft and this one. An object remembers the
/// number at its construction; if the number has changed, the object is a forked copy.
uint32_t fork_depth() noexcept;

/// From now on a forked child closes `descriptor`, or does not close it any more. Any thread may
/// call these.
void close_in_forked_child(int descriptor) noexcept;
void keep_in_forked_child(int descriptor) noexcept;

}  // namespace weft::base

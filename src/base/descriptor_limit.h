// How many files and sockets this process may have open.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>

namespace weft::base {

/// To be called when no descriptor could be had (EMFILE). Raises the soft limit towards the hard
/// one, so that the caller may try again; false if it is there already. It is raised no earlier and
/// no further than needed: programs that use select() cannot have descriptors above 1,023.
bool raise_descriptor_limit();

/// For an error: the limit, and what to do about it.
std::string describe_descriptor_limit();

}  // namespace weft::base

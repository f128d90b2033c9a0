// References that a program still had when it was shut down, in words.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <vector>

#include "weft/rref_census.h"

namespace weft::rref {

/// One line for each type of object and for each owner.
std::vector<std::string> describe_leaks(const RRefCensus& census);

}  // namespace weft::rref

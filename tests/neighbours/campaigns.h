// The campaigns. Each prints what it saw and returns whether that was as it should be.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>

#include "nursery.h"

namespace weft::neighbours {

bool run_kills(Nursery& nursery, uint64_t kills, uint64_t seed);
bool run_freezes(Nursery& nursery, uint64_t freezes, uint64_t seed);

bool run_scribbles(Nursery& nursery, uint64_t seconds, uint64_t seed);
void run_scribbler(const std::string& arguments);

/// Exit status. Starts the workers itself.
int run_all_to_all(int argc, char** argv, int workers, uint64_t seconds);

}  // namespace weft::neighbours

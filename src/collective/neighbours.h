// Memory that members on the same host read where it is.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include "collective/algorithms/fold.h"

namespace weft::collective {

/// Tensors like these flat ones, not initialised, in this process's arena. Nothing if no neighbour
/// has the arena mapped, if it is full, or if all are too small to be worth it.
Tensors tensors_for_neighbours(const Tensors& like);

}  // namespace weft::collective

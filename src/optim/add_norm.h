// Adds up the norms of several tensors or of several workers.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cmath>

namespace weft::optim {

/// Adds `part`, a norm to the power `norm_type`, to `sum`. If `norm_type` is infinite, `sum`
/// becomes the larger of the two. A NaN in either stays.
inline void add_norm(double& sum, double part, double norm_type) {
  if (!std::isinf(norm_type)) {
    sum += part;
  } else if (std::isnan(part) || part > sum) {
    sum = part;
  }
}

}  // namespace weft::optim

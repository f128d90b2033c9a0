// Norms of parts, put together.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cmath>

namespace weft::optim {

/// Adds a part, which is to the power `norm_type` unless that is infinite. What is not a number
/// stays.
inline void add_norm(double& sum, double part, double norm_type) {
  if (!std::isinf(norm_type)) {
    sum += part;
  } else if (std::isnan(part) || part > sum) {
    sum = part;
  }
}

}  // namespace weft::optim

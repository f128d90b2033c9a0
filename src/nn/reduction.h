// The gradients of one bucket on their way to being averages.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "collective/dual_channel.h"
#include "weft/future.h"

namespace weft::nn {

/// What a reduction is made with.
struct ReductionOptions {
  std::vector<int> ranks;  // of those who take part
  double divisor = 1;
  bool find_unused = false;
};

/// One gradient, of a parameter that may have none here.
struct Reduced {
  at::Tensor parameter;
  at::Tensor gradient;  // undefined: none; once it is reduced, maybe another tensor
  bool used = true;     // here; once it is reduced: by anybody
};

/// Gradients that are being averaged. Whoever has waited for the outcome takes them, once.
struct Reducing {
  Future<collective::Outcome> outcome;
  std::function<std::vector<Reduced>(const collective::Outcome&)> finish;

  /// Waits.
  std::vector<Reduced> take() const { return finish(outcome.wait()); }
};

/// Begin to average gradients over the members; those that are not there count as zeros.
/// Of dense ones of one type, in place; a sparse one among them becomes dense.
Reducing reduce_dense(const collective::DualChannel& dual, const ReductionOptions& options,
                      std::vector<Reduced> gradients);
/// Of a sparse one; a dense one becomes sparse.
Reducing reduce_sparse(collective::Channel& channel, const ReductionOptions& options,
                       Reduced gradient);

}  // namespace weft::nn

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

/// How a reduction is made.
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

/// Gradients that are being averaged. The thread that has waited for the outcome takes them, once.
struct Reducing {
  Future<collective::Outcome> outcome;
  std::function<std::vector<Reduced>(const collective::Outcome&)> finish;

  /// Waits.
  std::vector<Reduced> take() const { return finish(outcome.wait()); }
};

/// Begins to average dense gradients of one type over the members, in place. Missing gradients
/// count as zeros; a sparse gradient among them becomes dense.
Reducing reduce_dense(const collective::DualChannel& dual, const ReductionOptions& options,
                      std::vector<Reduced> gradients);
/// Begins to average a sparse gradient; a dense one becomes sparse.
Reducing reduce_sparse(collective::Channel& channel, const ReductionOptions& options,
                       Reduced gradient);

}  // namespace weft::nn

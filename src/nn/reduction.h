// Averages the gradients of one bucket over the members.
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

struct ReductionOptions {
  std::vector<int> ranks;  // the members that take part
  double divisor = 1;
  bool find_unused = false;
};

/// A parameter and its gradient.
struct Reduced {
  at::Tensor parameter;
  at::Tensor gradient;  // undefined if there is none here; after the reduction maybe another tensor
  bool used = true;     // before: whether this member used the parameter; after: whether any did
};

/// Gradients that are being averaged.
struct Reducing {
  Future<collective::Outcome> outcome;
  std::function<std::vector<Reduced>(const collective::Outcome&)> finish;

  /// Waits for the outcome. To be called once.
  std::vector<Reduced> take() const { return finish(outcome.wait()); }
};

// These begin to average gradients over the members. A gradient that is not there counts as zero.

/// Dense gradients of one type, in place where possible. A sparse one among them becomes dense.
Reducing reduce_dense(const collective::DualChannel& dual, const ReductionOptions& options,
                      std::vector<Reduced> gradients);
/// One sparse gradient. A dense gradient is made sparse.
Reducing reduce_sparse(collective::Channel& channel, const ReductionOptions& options,
                       Reduced gradient);

}  // namespace weft::nn

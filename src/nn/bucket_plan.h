// Decides which gradients are reduced together, in one bucket.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft::nn {

/// The properties of a parameter that decide about its bucket.
struct Bucketed {
  size_t bytes = 0;
  std::string type;  // element type and device, which are the same in a whole bucket
  bool sparse = false;
};

struct BucketLimits {
  size_t first_bytes = 0;
  size_t bytes = 0;
};

/// The buckets in the order in which they are reduced; a bucket is a list of indices of parameters.
using BucketPlan = std::vector<std::vector<size_t>>;

/// Fills buckets with `parameters`. `order` is the order in which their gradients come. A parameter
/// with sparse gradients gets a bucket of its own.
BucketPlan plan_buckets(const std::vector<Bucketed>& parameters, const std::vector<size_t>& order,
                        const BucketLimits& limits);

/// Tracks one backward pass. Buckets are reduced in the order of the plan, each when the gradients
/// of all its parameters are there.
class BucketProgress {
 public:
  BucketProgress(const BucketPlan& plan, size_t parameters);

  bool is_ready(size_t parameter) const { return ready_[parameter]; }
  /// The gradient of `parameter` is there. Returns the buckets that can be reduced now.
  std::vector<size_t> on_ready(size_t parameter);
  /// No more gradients will come. Returns all buckets that are left.
  std::vector<size_t> on_all();
  /// The parameters without a gradient.
  std::vector<size_t> missing() const;
  size_t begun() const { return next_; }

 private:
  std::vector<size_t> bucket_of_;
  std::vector<size_t> incomplete_;  // parameters that a bucket waits for
  std::vector<bool> ready_;
  size_t next_ = 0;
};

}  // namespace weft::nn

// The gradients that the passes of one context have given to leaves of this worker. Thread-safe.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "autograd/leaf_stage.h"
#include "autograd/leaves.h"
#include "base/mutex.h"
#include "weft/error.h"

namespace weft::autograd {

/// After close() every question throws the reason.
class ContextGradients {
 public:
  /// Undefined if the leaf has none.
  at::Tensor find(const at::Tensor& leaf) const {
    const base::MutexLock lock(mutex_);
    check();
    return leaves_.find(leaf);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> all() const {
    const base::MutexLock lock(mutex_);
    check();
    return leaves_.all();
  }
  /// Those of `leaves`, in their order; undefined where there is none.
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& leaves) const {
    const base::MutexLock lock(mutex_);
    check();
    std::vector<at::Tensor> found;
    found.reserve(leaves.size());
    for (const at::Tensor& leaf : leaves) found.push_back(leaves_.find(leaf));
    return found;
  }
  /// The same as find(), for the pass itself: does not throw.
  at::Tensor peek(const at::Tensor& leaf) const {
    const base::MutexLock lock(mutex_);
    return leaves_.find(leaf);
  }
  /// Replaces the gradients that these leaves have. Not while a pass runs.
  void replace(const std::vector<at::Tensor>& leaves, std::vector<at::Tensor> gradients) {
    const base::MutexLock lock(mutex_);
    check();
    for (size_t i = 0; i < leaves.size(); ++i) leaves_.replace(leaves[i], std::move(gradients[i]));
  }

  /// Adds what a pass gave; `staged` are put in place of what their leaves have. One thread at a
  /// time.
  void add(Leaves fresh, LeafStage::Gradients staged) {
    // Others read them meanwhile, so they are added up aside.
    Leaves sum;
    {
      const base::MutexLock lock(mutex_);
      sum = leaves_;
    }
    sum.add(std::move(fresh));
    for (auto& [leaf, gradient] : staged) sum.put(leaf, std::move(gradient));
    const bool has_sparse = sum.has_sparse();
    const base::MutexLock lock(mutex_);
    if (closed_) return;
    std::swap(leaves_, sum);
    has_sparse_ = has_sparse;
  }
  bool has_sparse() const {
    const base::MutexLock lock(mutex_);
    return has_sparse_;
  }
  size_t size() const {
    const base::MutexLock lock(mutex_);
    return leaves_.size();
  }

  void close(const Error& why) {
    const base::MutexLock lock(mutex_);
    closed_ = why;
  }
  /// After close(): the gradients, for the caller to free.
  Leaves take() {
    const base::MutexLock lock(mutex_);
    return std::exchange(leaves_, {});
  }

 private:
  void check() const WEFT_REQUIRES(mutex_) {
    if (closed_) throw *closed_;
  }

  mutable base::Mutex mutex_;
  Leaves leaves_ WEFT_GUARDED_BY(mutex_);
  bool has_sparse_ WEFT_GUARDED_BY(mutex_) = false;
  std::optional<Error> closed_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::autograd

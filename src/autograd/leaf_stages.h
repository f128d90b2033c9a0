// The stages that the gradients of one context go through on one worker.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/leaf_stage.h"
#include "base/mutex.h"

namespace weft::autograd {

class LeafStages {
 public:
  /// For `leaves`, in all passes to come. Harmless when repeated.
  void add(const detail::Ref<LeafStage>& stage, const std::vector<at::Tensor>& leaves);
  bool empty() const;

  /// Null if the leaf goes through none.
  detail::Ref<LeafStage> find(const at::Tensor& leaf) const;
  /// The pass is about to give its leaves to them.
  void begin_pass();
  /// The pass has no more leaves: `then` is called, by any thread, once all stages are done.
  void finish_pass(const LeafStage::Earlier& earlier, std::function<void(LeafStage::Result)> then);
  /// No pass will go on, and none will begin. Takes no memory.
  void give_up(const std::string& cause) noexcept;

 private:
  mutable base::Mutex mutex_;
  std::vector<detail::Ref<LeafStage>> stages_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<c10::TensorImpl*, detail::Ref<LeafStage>> by_leaf_ WEFT_GUARDED_BY(mutex_);
  bool in_pass_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::autograd

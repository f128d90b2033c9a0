// A hook that is called when torch's own engine has given a leaf its gradient.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "autograd/torch_graph.h"

namespace weft::autograd {

/// While the hook lives, it calls `on_gradient` in every backward() that reaches `leaf`, after that
/// backward() has written `.grad`; backward() throws its exceptions. Passes of a Context have
/// LeafStage instead.
class LeafHook {
 public:
  LeafHook(const at::Tensor& leaf, std::function<void()> on_gradient);
  ~LeafHook();
  LeafHook(const LeafHook&) = delete;
  LeafHook& operator=(const LeafHook&) = delete;

 private:
  const std::shared_ptr<Node> node_;
  uintptr_t hook_;
};

/// Within such a call: runs `task` when that backward() has computed everything, before it returns.
/// backward() throws its exceptions.
void at_end_of_backward(std::function<void()> task);

}  // namespace weft::autograd

// Leaf stages: a layer above changes the gradients of some leaves before a pass gives them out.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/detail/ref_counted.h"

namespace weft::autograd {

/// Takes part in the passes of the contexts it was added to. The methods are called by one thread
/// at a time; any thread may call the `done` that on_all() is given.
class LeafStage : public detail::RefCounted {
 public:
  using Gradients = std::vector<std::pair<at::Tensor, at::Tensor>>;  // leaf and gradient
  struct Result {
    Gradients gradients;               // in place of those the leaves would get
    std::optional<std::string> cause;  // why the context must be given up
  };

  /// The gradient that `leaf` will have in the context, of this pass and those before, is there.
  /// Nobody else has it. Must not wait for others.
  virtual void on_leaf(const at::Tensor& leaf, const at::Tensor& gradient) = 0;
  /// There are no more in this pass. `earlier` gives what a leaf has of passes before, which must
  /// not be changed; undefined if there is nothing. `done` is called once, by any thread, also
  /// before it returns.
  using Earlier = std::function<at::Tensor(const at::Tensor& leaf)>;
  virtual void on_all(const Earlier& earlier, std::function<void(Result)> done) = 0;
  /// The context was given up, or ended, in the middle of a pass: on_all() will not be called.
  virtual void on_given_up(const std::string& cause) = 0;
};

}  // namespace weft::autograd

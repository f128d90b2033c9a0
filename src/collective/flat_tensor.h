// A tensor in the form that operations of a group need: of one dimension, contiguous, and on the
// CPU unless the operation goes from accelerator to accelerator.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "collective/algorithms/fold.h"

namespace weft::collective {

class FlatTensor {
 public:
  FlatTensor(const at::Tensor& tensor, bool direct)
      : tensor_(tensor.detach()), flat_(collective::flat(direct ? tensor_ : tensor_.cpu())) {}

  const at::Tensor& values() const { return flat_; }
  /// Copies values() to the tensor, unless they share memory.
  void bring_back() const {
    if (tensor_.device() == flat_.device() && tensor_.is_contiguous()) return;
    const c10::AutoGradMode off(false);
    tensor_.copy_(flat_.view(tensor_.sizes()));
    if (tensor_.is_cpu()) return;
    // Wait for the copy: the program may use the tensor on another stream than this thread's.
    const c10::impl::VirtualGuardImpl accelerator(tensor_.device().type());
    accelerator.getStream(tensor_.device()).synchronize();
  }

 private:
  at::Tensor tensor_, flat_;
};

}  // namespace weft::collective

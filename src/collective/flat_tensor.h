// A tensor as operations of a group take it: flat, contiguous, on the CPU or, if they go from
// accelerator to accelerator, where it is.
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
  /// Brings what was made of it to the tensor, if it travels as a copy.
  void bring_back() const {
    if (tensor_.device() == flat_.device() && tensor_.is_contiguous()) return;
    const c10::AutoGradMode off(false);
    tensor_.copy_(flat_.view(tensor_.sizes()));
    if (tensor_.is_cpu()) return;
    // The tensor may be used on another stream than this thread's.
    const c10::impl::VirtualGuardImpl accelerator(tensor_.device().type());
    accelerator.getStream(tensor_.device()).synchronize();
  }

 private:
  at::Tensor tensor_, flat_;
};

}  // namespace weft::collective

// What algorithms do with the chunks of all places.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <vector>

#include "collective/algorithms/algorithm.h"
#include "collective/algorithms/fold.h"

namespace weft::collective {

inline int64_t elements_of(const Tensors& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

inline int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.numel() * tensor.element_size();
  return bytes;
}

/// Throws kBadMessage unless the chunks of the other places are like `own`.
void check_others(const Place& place, const Tensors& own, const std::vector<Tensors>& chunks);

/// Folds the chunks of the other places and `own` into `into`, which is `own` or like it. `own` may
/// be overwritten.
void fold_into(const Place& place, const Folding& folding, Tensors& into, Tensors& own,
               std::vector<Tensors> chunks);

/// Copies tensors that are like those of `to`; throws kBadMessage if they are not.
void copy(Tensors& to, const Tensors& from);

}  // namespace weft::collective

// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/chunks.h"

#include <cstring>

namespace weft::collective {

void check_others(const Place& place, const Tensors& own, const std::vector<Tensors>& chunks) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i != place.own) check_like(own, chunks[i]);
  }
}

void fold_into(const Place& place, const Folding& folding, Tensors& into, Tensors& own,
               std::vector<Tensors> chunks) {
  check_others(place, own, chunks);
  chunks[place.own] = own;
  fold(folding, into, chunks, place.own);
}

namespace {

// For a tensor of more than a few elements torch's copy_() wakes other threads, a set of them for
// each thread that calls it.
void copy_one(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_conj() || to.is_neg()) {
    to.copy_(from);
  } else if (to.numel() > 0) {
    std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
    to.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace

void copy(Tensors& to, const Tensors& from) {
  check_like(to, from);
  for (size_t i = 0; i < to.size(); ++i) copy_one(to[i], from[i]);
}

}  // namespace weft::collective

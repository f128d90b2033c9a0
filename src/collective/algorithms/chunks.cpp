// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/chunks.h"

namespace weft::collective {

void check_others(const Place& place, const Tensors& own, const std::vector<Tensors>& chunks) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i != place.own) check_like(own, chunks[i]);
  }
}

void fold_into(const Place& place, const Folding& folding, Tensors& own,
               std::vector<Tensors> chunks) {
  check_others(place, own, chunks);
  chunks[place.own] = own;
  fold(folding, own, chunks, place.own);
}

void copy(Tensors& to, const Tensors& from) {
  check_like(to, from);
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

}  // namespace weft::collective

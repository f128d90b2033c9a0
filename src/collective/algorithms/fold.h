// Sums, and what else all_reduce may be asked for, over what several members gave.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "collective/algorithms/operation_message.h"

namespace weft::collective {

/// How a reduction goes: `op`, then a multiplication by `scale`.
struct Folding {
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
};
/// The folding for `op` over so many members: an average is a sum times 1 / members.
Folding folding_of(ReduceOp op, size_t members);

/// Folds `chunks`, in their order, into `into`, which is one of them: the one at `own`. The others
/// are used up. All are contiguous, with the same numbers of elements. The order alone decides the
/// result, so every member that folds the same chunks gets the same bits.
void fold(const Folding& folding, Tensors& into, std::vector<Tensors>& chunks, size_t own);

/// The same into memory of a chunk that is not at `own`, which stays as it is. There are two or
/// more.
Tensors fold_apart(const Folding& folding, std::vector<Tensors>& chunks, size_t own);

/// One dimension over all elements, in the order of their indices, whatever that in memory is:
/// another member's may be another. Shares memory with a contiguous tensor, else it is a copy.
at::Tensor flat(const at::Tensor& tensor);

/// The elements from `begin` to `end` of flat tensors one after the other, as views.
Tensors slice(const Tensors& tensors, int64_t begin, int64_t end);

/// Throws kBadMessage unless `got` is flat and has the numbers of elements and types of `wanted`.
void check_like(const Tensors& wanted, const Tensors& got);

}  // namespace weft::collective

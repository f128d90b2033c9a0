// Reductions (sum, product, minimum, maximum, average) over the tensors of several members.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "collective/algorithms/operation_message.h"

namespace weft::collective {

/// A reduction: `op` over all members, then a multiplication by `scale`.
struct Folding {
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
};
/// The reduction for `op` over so many members; an average is a sum times 1 / members.
Folding folding_of(ReduceOp op, size_t members);

/// Folds `chunks`, in their order, into `into`, which is chunks[own] or other memory. The memory of
/// all chunks may be overwritten. All are contiguous, with the same numbers of elements. The result
/// depends on the order of the chunks and not on `own`, so all members that fold the same chunks
/// get the same bits.
void fold(const Folding& folding, Tensors& into, std::vector<Tensors>& chunks, size_t own);

/// Does the same, but leaves chunks[own] as it is and puts the result into the memory of another
/// chunk. There must be at least two chunks.
Tensors fold_apart(const Folding& folding, std::vector<Tensors>& chunks, size_t own);

/// All elements in one dimension, in the order of their indices. (Their order in memory may differ
/// from member to member.) Shares memory with a contiguous tensor; otherwise it is a copy.
at::Tensor flat(const at::Tensor& tensor);

/// Views of the elements from `begin` to `end`, counted through all of these flat tensors.
Tensors slice(const Tensors& tensors, int64_t begin, int64_t end);

/// Throws kBadMessage unless `got` is flat and has the numbers of elements and types of `wanted`.
void check_like(const Tensors& wanted, const Tensors& got);

}  // namespace weft::collective

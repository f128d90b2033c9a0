// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/fold.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include "weft/error.h"

namespace weft::collective {

namespace {

// The number of elements that is folded at a time. So many fit into the cache of a core, so the
// next pass over them is cheap; and torch's operators do not wake other threads for so few.
constexpr int64_t kStretch = 16 * 1024;

void combine(ReduceOp op, at::Tensor& into, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      at::add_out(into, a, b);
      return;
    case ReduceOp::kProduct:
      at::mul_out(into, a, b);
      return;
    case ReduceOp::kMin:
      at::minimum_out(into, a, b);
      return;
    case ReduceOp::kMax:
      at::maximum_out(into, a, b);
      return;
  }
}

void fold_stretch(const Folding& folding, const std::vector<at::Tensor>& chunks, size_t own) {
  at::Tensor into = chunks[own];
  at::Tensor sum = chunks.front();
  for (size_t i = 1; i < chunks.size(); ++i) {
    // The chunks before `own` are summed up in the memory of the first chunk.
    at::Tensor& to = i >= own ? into : sum;
    combine(folding.op, to, sum, chunks[i]);
    sum = to;
  }
  if (folding.scale != 1) into.mul_(folding.scale);
}

// The result is in the memory of the first chunk, or of the second if the first is `own`.
void fold_stretch_apart(const Folding& folding, const std::vector<at::Tensor>& chunks, size_t own) {
  at::Tensor into = chunks[own == 0 ? 1 : 0];
  combine(folding.op, into, chunks[0], chunks[1]);
  for (size_t i = 2; i < chunks.size(); ++i) combine(folding.op, into, into, chunks[i]);
  if (folding.scale != 1) into.mul_(folding.scale);
}

// Calls `f` with the same stretch of all chunks.
template <typename F>
void for_stretches(const std::vector<Tensors>& chunks, size_t tensor, const F& f) {
  const int64_t elements = chunks.front()[tensor].numel();
  for (int64_t begin = 0; begin < elements; begin += kStretch) {
    const int64_t length = std::min(kStretch, elements - begin);
    std::vector<at::Tensor> stretch;
    for (const Tensors& chunk : chunks) stretch.push_back(chunk[tensor].narrow(0, begin, length));
    f(stretch);
  }
}

// Needs one pass over memory; torch's operators need one for each chunk and one for the scale.
// Works in blocks of constant length, for which the compiler makes vector code. `into` may be one
// of the chunks.
template <typename T>
void sum_up(const std::vector<const T*>& chunks, T* into, int64_t elements, T scale) {
  constexpr int64_t kBlock = 64;
  int64_t at = 0;
  for (; at + kBlock <= elements; at += kBlock) {
    T sum[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) sum[i] = chunks[0][at + i];
    for (size_t k = 1; k < chunks.size(); ++k) {
      const T* chunk = chunks[k] + at;
      for (int64_t i = 0; i < kBlock; ++i) sum[i] += chunk[i];
    }
    for (int64_t i = 0; i < kBlock; ++i) into[at + i] = sum[i] * scale;
  }
  for (; at < elements; ++at) {
    T sum = chunks[0][at];
    for (size_t k = 1; k < chunks.size(); ++k) sum += chunks[k][at];
    into[at] = sum * scale;
  }
}

template <typename T>
void sum_up(const Folding& folding, const std::vector<Tensors>& chunks, size_t tensor,
            const at::Tensor& into) {
  std::vector<const T*> pointers;
  for (const Tensors& chunk : chunks) pointers.push_back(chunk[tensor].data_ptr<T>());
  sum_up(pointers, into.data_ptr<T>(), into.numel(), static_cast<T>(folding.scale));
}

// Handles the common case, sums and averages of floats and doubles. False in all other cases.
bool sum_up_floats(const Folding& folding, const std::vector<Tensors>& chunks, size_t tensor,
                   const at::Tensor& into) {
  if (folding.op != ReduceOp::kSum && folding.op != ReduceOp::kAverage) return false;
  if (into.scalar_type() == at::kFloat) {
    sum_up<float>(folding, chunks, tensor, into);
  } else if (into.scalar_type() == at::kDouble) {
    sum_up<double>(folding, chunks, tensor, into);
  } else {
    return false;
  }
  return true;
}

}  // namespace

Folding folding_of(ReduceOp op, size_t members) {
  return {op, op == ReduceOp::kAverage ? 1.0 / static_cast<double>(members) : 1.0};
}

void fold(const Folding& folding, Tensors& into, std::vector<Tensors>& chunks, size_t own) {
  for (size_t i = 0; i < into.size(); ++i) {
    if (sum_up_floats(folding, chunks, i, into[i])) continue;
    for_stretches(chunks, i, [&](const std::vector<at::Tensor>& stretch) {
      fold_stretch(folding, stretch, own);
    });
    if (!into[i].is_same(chunks[own][i])) into[i].copy_(chunks[own][i]);
  }
}

Tensors fold_apart(const Folding& folding, std::vector<Tensors>& chunks, size_t own) {
  const Tensors apart = chunks[own == 0 ? 1 : 0];
  for (size_t i = 0; i < apart.size(); ++i) {
    if (sum_up_floats(folding, chunks, i, apart[i])) continue;
    for_stretches(chunks, i, [&](const std::vector<at::Tensor>& stretch) {
      fold_stretch_apart(folding, stretch, own);
    });
  }
  return apart;
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().contiguous().view({-1}); }

Tensors slice(const Tensors& tensors, int64_t begin, int64_t end) {
  Tensors slices;
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t first = std::max(begin - at, int64_t{0});
    const int64_t last = std::min(end - at, tensor.numel());
    if (first < last) slices.push_back(tensor.narrow(0, first, last - first));
    at += tensor.numel();
  }
  return slices;
}

void check_like(const Tensors& wanted, const Tensors& got) {
  if (wanted.size() != got.size()) {
    throw Error(ErrorCode::kBadMessage,
                fmt::format("{} tensors in place of {}", got.size(), wanted.size()));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (!got[i].defined() || got[i].layout() != c10::kStrided || got[i].dim() != 1 ||
        !got[i].is_contiguous() || got[i].numel() != wanted[i].numel() ||
        got[i].scalar_type() != wanted[i].scalar_type()) {
      throw Error(ErrorCode::kBadMessage,
                  fmt::format("tensor {} in place of {} elements of {}", i, wanted[i].numel(),
                              c10::toString(wanted[i].scalar_type())));
    }
  }
}

}  // namespace weft::collective

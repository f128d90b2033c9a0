// SPDX-License-Identifier: BSD-3-Clause
#include "collective/neighbours.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/TensorImpl.h>

#include "arena/arena.h"
#include "wire/carrier.h"
#include "wire/torch_version.h"

namespace weft::collective {

namespace {

bool is_worth_sharing(const at::Tensor& tensor) {
  return tensor.nbytes() >= wire::kSmallestCarried;
}

at::Tensor in_arena(arena::Arena& arena, const at::Tensor& like) {
  c10::DataPtr memory = arena.allocate(like.nbytes());
  if (!memory) return {};
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      wire::make_storage(like.nbytes(), std::move(memory)),
      c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  return tensor;
}

}  // namespace

Tensors tensors_for_neighbours(const Tensors& like) {
  arena::Arena* arena = arena::Arena::existing();
  if (!arena || std::none_of(like.begin(), like.end(), is_worth_sharing)) return {};
  Tensors tensors;
  for (const at::Tensor& each : like) {
    at::Tensor tensor = is_worth_sharing(each) ? in_arena(*arena, each) : at::empty_like(each);
    if (!tensor.defined()) return {};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace weft::collective

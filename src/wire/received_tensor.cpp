// SPDX-License-Identifier: BSD-3-Clause
#include "wire/received_tensor.h"

#include <optional>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <fmt/format.h>

#include "weft/codec.h"
#include "wire/torch_version.h"

namespace weft::wire {

namespace {

bool can_require_grad(c10::ScalarType type) {
  return c10::isFloatingType(type) || c10::isComplexType(type);
}

void set_requires_grad(at::Tensor& tensor, const TensorEntry& row) {
  if (!(row.flags & kRequiresGrad)) return;
  if (!can_require_grad(row.dtype)) Decoder::fail("a tensor of integers requires grad");
  tensor.set_requires_grad(true);
}

void check_indices(const TensorEntry& row, const at::Tensor& indices) {
  const int64_t* at = indices.data_ptr<int64_t>();
  const int64_t nonzeros = indices.size(1);
  for (size_t d = 0; d < row.sparse_dimensions; ++d) {
    for (int64_t i = 0; i < nonzeros; ++i, ++at) {
      if (*at < 0 || *at >= row.sizes[d]) {
        Decoder::fail(fmt::format("sparse index {} in a dimension of {}", *at, row.sizes[d]));
      }
    }
  }
}

// Whether the indices are in order and none appears twice. libtorch relies on this if a tensor says
// that it is coalesced.
bool are_coalesced(const TensorEntry& row, const at::Tensor& indices) {
  const int64_t* at = indices.data_ptr<int64_t>();
  const int64_t nonzeros = indices.size(1);
  const auto comes_before = [&](int64_t a, int64_t b) {
    for (size_t d = 0; d < row.sparse_dimensions; ++d) {
      const int64_t* dimension = at + static_cast<int64_t>(d) * nonzeros;
      if (dimension[a] != dimension[b]) return dimension[a] < dimension[b];
    }
    return false;
  };
  for (int64_t i = 1; i < nonzeros; ++i) {
    if (!comes_before(i - 1, i)) return false;
  }
  return true;
}

void check_sparse(const TensorEntry& row, const at::Tensor& indices, const at::Tensor& values) {
  const int64_t sparse = row.sparse_dimensions;
  const int64_t dense = static_cast<int64_t>(row.dimensions) - sparse;
  const bool fits =
      indices.defined() && values.defined() && dense >= 0 && indices.scalar_type() == at::kLong &&
      indices.dim() == 2 && indices.is_contiguous() && indices.size(0) == sparse &&
      values.dim() == dense + 1 && values.size(0) == indices.size(1) &&
      values.scalar_type() == row.dtype && values.sizes().slice(1) == row.size_list().slice(sparse);
  if (!fits) Decoder::fail("indices and values do not fit their sparse tensor");
  check_indices(row, indices);
}

}  // namespace

at::Tensor make_received_tensor(const TensorEntry& row, c10::DataPtr memory) {
  if (row.flags & kUndefined) return {};
  if (row.flags & kSparse) Decoder::fail("a sparse tensor inside a sparse tensor");
  // Not an inference tensor, even if this thread is in inference mode: it may be receiving for
  // another thread.
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled()) normal.emplace(false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      make_storage(row.bytes, std::move(memory)), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(row.dtype));
  if (row.flags & kStrided) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(row.size_list(), row.stride_list());
  } else {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(row.size_list());
  }
  set_requires_grad(tensor, row);
  return tensor;
}

at::Tensor make_received_sparse(const TensorEntry& row, at::Tensor indices, at::Tensor values) {
  check_sparse(row, indices, values);
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled()) normal.emplace(false);
  at::Tensor tensor = at::_sparse_coo_tensor_unsafe(indices, values.detach(), row.size_list(),
                                                    values.options().layout(at::kSparse));
  // Do not trust the sender's flag: if it is wrong, the tensor counts as not coalesced, and results
  // stay right.
  tensor._coalesced_((row.flags & kCoalesced) != 0 && are_coalesced(row, indices));
  set_requires_grad(tensor, row);
  return tensor;
}

}  // namespace weft::wire

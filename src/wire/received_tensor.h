// Makes tensors from rows of the table and from the memory that their bytes were received into.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <ATen/core/Tensor.h>

#include "wire/tensor_entry.h"

namespace weft::wire {

/// A tensor that nobody else has. `row` was checked by read_entry and is not kSparse.
at::Tensor make_received_tensor(const TensorEntry& row, c10::DataPtr memory);

/// Throws kBadMessage unless indices and values fit the sizes.
at::Tensor make_received_sparse(const TensorEntry& row, at::Tensor indices, at::Tensor values);

}  // namespace weft::wire

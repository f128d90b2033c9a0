// Checks that the members of a group have the same tensors, and gives them the same values.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "collective/dual_channel.h"

namespace weft::nn {

using NamedTensor = std::pair<std::string, at::Tensor>;

/// Throws kInvalidArgument, naming what differs, unless all members have tensors of the same names,
/// types, shapes and strides, and the same of them with gradients share a device. If `device` is
/// not the CPU, the same tensors must be on it everywhere.
void check_same(collective::Channel& channel, const std::vector<WorkerInfo>& members,
                const std::vector<NamedTensor>& tensors, at::Device device);

/// Gives the members in `ranks` the values that the member of rank `root` has.
void broadcast_all(const collective::DualChannel& dual, const std::vector<int>& ranks,
                   const std::vector<at::Tensor>& tensors, int root);

}  // namespace weft::nn

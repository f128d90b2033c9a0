// Reads and loads the parameters and buffers of a module.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <torch/nn/module.h>

#include "weft/nn.h"

namespace weft::nn {

/// The module's own tensors, not copies.
ModuleState view_state(const torch::nn::Module& module);

/// Throws kInvalidArgument unless names, sizes and element types are those of the module.
void check_state(const torch::nn::Module& module, const ModuleState& state);

/// Checks like check_state(), then copies the values into the module.
void load_state(torch::nn::Module& module, const ModuleState& state);

}  // namespace weft::nn

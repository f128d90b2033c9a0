// Everything a module has learned, read from it and put back.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <torch/nn/module.h>

#include "weft/nn.h"

namespace weft::nn {

/// The state of `module`, with its own tensors and not copies.
ModuleState view_state(const torch::nn::Module& module);

/// Throws kInvalidArgument unless names, sizes and element types are those of the module.
void check_state(const torch::nn::Module& module, const ModuleState& state);

/// Checks, then copies.
void load_state(torch::nn::Module& module, const ModuleState& state);

}  // namespace weft::nn

// SPDX-License-Identifier: BSD-3-Clause
#include "nn/module_state.h"

#include <string>

#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace weft::nn {

namespace {

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{}{} [{}]", tensor.is_sparse() ? "sparse " : "",
                     c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

bool fits(const at::Tensor& own, const at::Tensor& given) {
  return given.defined() && own.sizes() == given.sizes() &&
         own.scalar_type() == given.scalar_type() && own.is_sparse() == given.is_sparse();
}

}  // namespace

ModuleState view_state(const torch::nn::Module& module) {
  ModuleState state;
  for (const auto& each : module.named_parameters()) state.emplace(each.key(), each.value());
  for (const auto& each : module.named_buffers()) state.emplace(each.key(), each.value());
  return state;
}

void check_state(const torch::nn::Module& module, const ModuleState& state) {
  const ModuleState own = view_state(module);
  std::string wrong;
  for (const auto& [name, tensor] : own) {
    auto given = state.find(name);
    if (given == state.end()) {
      wrong += fmt::format("; {} is missing", name);
    } else if (!fits(tensor, given->second)) {
      wrong +=
          fmt::format("; {} is {} and not {}", name, describe(given->second), describe(tensor));
    } else if (!tensor.is_sparse() && at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      wrong += fmt::format("; {} has elements that share memory, and cannot be loaded", name);
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!own.contains(name)) wrong += fmt::format("; the module has no {}", name);
  }
  if (!wrong.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("this is not the state of a {}{}", module.name(), wrong));
  }
}

void load_state(torch::nn::Module& module, const ModuleState& state) {
  check_state(module, state);
  const c10::AutoGradMode off(false);
  for (const auto& [name, tensor] : view_state(module)) tensor.copy_(state.at(name));
}

}  // namespace weft::nn

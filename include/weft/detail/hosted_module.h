// A module on the worker that has it, whatever its class.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "weft/export.h"

namespace weft::nn {

struct HostedModule {
  explicit HostedModule(std::shared_ptr<torch::nn::Module> hosted) : module(std::move(hosted)) {}
  std::shared_ptr<torch::nn::Module> module;
};

namespace detail {

template <typename M>
HostedModule host_module(M& module) {
  return HostedModule(module.torch::nn::Module::shared_from_this());
}

/// Where the module's parameters are, if not in the memory that calls are sent from.
WEFT_API std::optional<at::Device> accelerator_of(const torch::nn::Module& module);

/// Moves the tensors in what a module takes or returns. All are declared before any is defined:
/// they use each other.
template <typename T>
void move_tensors(T&, const at::Device&) {}
inline void move_tensors(at::Tensor& tensor, const at::Device& device) {
  if (tensor.defined()) tensor = tensor.to(device);
}
template <typename T>
void move_tensors(std::vector<T>& values, const at::Device& device);
template <typename T>
void move_tensors(std::optional<T>& value, const at::Device& device);
template <typename K, typename T>
void move_tensors(std::map<K, T>& values, const at::Device& device);
template <typename A, typename B>
void move_tensors(std::pair<A, B>& values, const at::Device& device);
template <typename... Ts>
void move_tensors(std::tuple<Ts...>& values, const at::Device& device);

template <typename T>
void move_tensors(std::vector<T>& values, const at::Device& device) {
  for (T& each : values) move_tensors(each, device);
}
template <typename T>
void move_tensors(std::optional<T>& value, const at::Device& device) {
  if (value) move_tensors(*value, device);
}
template <typename K, typename T>
void move_tensors(std::map<K, T>& values, const at::Device& device) {
  for (auto& each : values) move_tensors(each.second, device);
}
template <typename A, typename B>
void move_tensors(std::pair<A, B>& values, const at::Device& device) {
  move_tensors(values.first, device);
  move_tensors(values.second, device);
}
template <typename... Ts>
void move_tensors(std::tuple<Ts...>& values, const at::Device& device) {
  std::apply([&device](Ts&... each) { (move_tensors(each, device), ...); }, values);
}

}  // namespace detail
}  // namespace weft::nn

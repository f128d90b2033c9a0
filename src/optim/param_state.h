// Access to the state that an optimizer of libtorch keeps for one parameter. libtorch's table has
// the address of the tensor as its key; in version 1.13 the key is the address as text.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

namespace weft::optim {

using StateMap = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

// A template only for `if constexpr` to leave out the branch that does not compile.
template <typename Key = StateMap::key_type>
Key state_key(const at::Tensor& param) {
  void* const address = param.unsafeGetTensorImpl();
  if constexpr (std::is_pointer_v<Key>) {
    return address;
  } else {
    return c10::str(address);
  }
}

/// Null if there is none.
inline torch::optim::OptimizerParamState* find_state(const torch::optim::Optimizer& optimizer,
                                                     const at::Tensor& param) {
  const auto found = optimizer.state().find(state_key(param));
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

/// Null if there is none. Throws c10::Error if the state is that of another class of optimizers.
template <typename State>
State* find_state(torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  torch::optim::OptimizerParamState* const found = find_state(std::as_const(optimizer), param);
  State* const state = dynamic_cast<State*>(found);
  TORCH_CHECK(state || !found, "the parameter has the state of another kind of optimizer");
  return state;
}

inline void set_state(torch::optim::Optimizer& optimizer, const at::Tensor& param,
                      std::unique_ptr<torch::optim::OptimizerParamState> state) {
  optimizer.state()[state_key(param)] = std::move(state);
}

/// Replaces the state that the parameter had.
template <typename State>
State& add_state(torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  auto state = std::make_unique<State>();
  State& added = *state;
  set_state(optimizer, param, std::move(state));
  return added;
}

inline void clear_state(torch::optim::Optimizer& optimizer, const at::Tensor& param) {
  optimizer.state().erase(state_key(param));
}

}  // namespace weft::optim

// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/leaf_hook.h"

#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::autograd {

LeafHook::LeafHook(const at::Tensor& leaf, std::function<void()> on_gradient)
    : node_(torch::autograd::impl::grad_accumulator(leaf)) {
  auto run = [told = std::move(on_gradient)](const Tensors& outputs, const Tensors&) {
    if (!is_leaf_of_pass()) told();
    return outputs;
  };
  hook_ = node_->add_post_hook(
      std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(run)));
}

LeafHook::~LeafHook() { node_->del_post_hook(hook_); }

void at_end_of_backward(std::function<void()> task) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(task));
}

}  // namespace weft::autograd

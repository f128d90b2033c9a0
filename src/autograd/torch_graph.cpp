// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/torch_graph.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/real.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>

#include "wire/torch_version.h"
#if WEFT_TORCH_AT_LEAST(2, 0)
#include <torch/csrc/autograd/engine.h>
#endif

namespace weft::autograd {

using torch::autograd::AccumulateGrad;

Tensors Receipt::apply(Tensors&&) {
  throw std::logic_error(
      fmt::format("this tensor came from worker {} in the autograd context {}; its gradients are "
                  "computed by Context::backward of that context, not by Tensor::backward",
                  from_, context_));
}

Edge edge_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return {};
  return torch::autograd::impl::gradient_edge(tensor);
}

void begin_at(const std::shared_ptr<Receipt>& receipt, std::span<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    tensor.set_requires_grad(false);  // it came as a leaf
    const uint32_t number = receipt->add_input_metadata(tensor);
    torch::autograd::impl::set_gradient_edge(tensor, {receipt, number});
  }
}

at::Tensor leaf_of(Node& node) {
  auto* leaf = dynamic_cast<AccumulateGrad*>(&node);
  return leaf ? leaf->variable : at::Tensor();
}

#if WEFT_TORCH_AT_LEAST(2, 0)
void fit(const Edges& edges, Tensors& gradients) {
  torch::autograd::validate_outputs(edges, gradients,
                                    [](const std::string& message) { return message; });
}
#else
namespace {

// The engine's own check is not exported.
void fit_one(const torch::autograd::InputMetadata& input, size_t index, at::Tensor& gradient) {
  if (!input.is_same_shape(gradient)) {
    if (!input.is_expandable_to_shape(gradient)) {
      throw std::runtime_error(input.incompatible_shape_error_message(index, gradient).str());
    }
    gradient = input.reduce_grad(gradient);
  }
  const c10::ScalarType type = c10::typeMetaToScalarType(input.dtype());
  if (!c10::isComplexType(type) && gradient.is_complex()) gradient = at::real(gradient);
  if (gradient.scalar_type() != type) gradient = gradient.to(type);
  if (gradient.device() == input.device()) return;
  if (gradient.dim() != 0) {
    throw std::runtime_error(fmt::format("gradient {} is on {}, expected on {}", index,
                                         gradient.device().str(), input.device().str()));
  }
  gradient = gradient.to(input.device());
}

}  // namespace

void fit(const Edges& edges, Tensors& gradients) {
  if (edges.size() != gradients.size()) {
    throw std::runtime_error(
        fmt::format("{} gradients for {} inputs", gradients.size(), edges.size()));
  }
  for (size_t i = 0; i < edges.size(); ++i) {
    if (!edges[i].is_valid() || !gradients[i].defined()) continue;
    fit_one(edges[i].function->input_metadata(edges[i].input_nr), i, gradients[i]);
  }
}
#endif

void accumulate(at::Tensor& sum, at::Tensor gradient) {
  if (!gradient.defined()) return;
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else {
    // Dense plus sparse is dense; the other way round is not defined.
    sum = sum.is_sparse() ? gradient + sum : sum + gradient;
  }
}

Tensors run_hooks(Node& node, Tensors gradients) {
#if WEFT_TORCH_AT_LEAST(2, 0)
  for (const auto& hook : node.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (const auto& [number, hook] : node.retains_grad_hooks()) gradients = (*hook)(gradients);
#endif
  for (const auto& hook : node.pre_hooks()) gradients = (*hook)(gradients);
  return gradients;
}

namespace {

std::optional<c10::Stream> stream_of(Node& node) {
#if WEFT_TORCH_AT_LEAST(2, 0)
  const auto stream = node.stream();
#else
  const auto stream = node.stream(c10::DeviceType::CUDA);
#endif
  return stream.has_value() ? std::optional<c10::Stream>(*stream) : std::nullopt;
}

// Whether nobody else has it and it lies in memory as the leaf does, so that it may be kept and
// changed in place, as torch does with `.grad`.
bool is_own(const at::Tensor& gradient, const at::Tensor& leaf) {
  if (!gradient.defined()) return true;
  if (gradient.use_count() > 1 || gradient.requires_grad()) return false;
  if (gradient.is_sparse()) return true;
  if (leaf.is_sparse()) return false;
  return gradient.storage().use_count() == 1 &&
         torch::autograd::utils::obeys_layout_contract(gradient, leaf);
}

at::Tensor own_copy(const at::Tensor& gradient, const at::Tensor& leaf) {
  if (gradient.is_sparse() || leaf.is_sparse()) return gradient.detach().clone();
  return torch::autograd::utils::clone_obey_contract(gradient.detach(), leaf);
}

Tensors run_post_hooks(Node& node, Tensors outputs, const Tensors& inputs) {
  for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, inputs);
  return outputs;
}

}  // namespace

Tensors run_inner(Node& node, Tensors gradients, bool retain_graph) {
  gradients = run_hooks(node, std::move(gradients));
  if (!retain_graph) node.will_release_variables();
  Tensors outputs;
  if (node.post_hooks().empty()) {
    outputs = node(std::move(gradients));
    fit(node.next_edges(), outputs);
  } else {
    outputs = node(Tensors(gradients));
    fit(node.next_edges(), outputs);
    outputs = run_post_hooks(node, std::move(outputs), gradients);
  }
  if (!retain_graph) node.release_variables();
  return outputs;
}

namespace {

thread_local bool runs_leaf_of_pass = false;

struct LeafOfPass {
  LeafOfPass() { runs_leaf_of_pass = true; }
  ~LeafOfPass() { runs_leaf_of_pass = false; }
};

}  // namespace

bool is_leaf_of_pass() { return runs_leaf_of_pass; }

at::Tensor run_leaf(Node& node, const at::Tensor& leaf, Tensors gradients) {
  const LeafOfPass here;
  gradients = run_hooks(node, std::move(gradients));
#if !WEFT_TORCH_AT_LEAST(2, 0)
  if (gradients[0].defined())
    gradients[0] = AccumulateGrad::callHooks(leaf, std::move(gradients[0]));
#endif
  run_post_hooks(node, {}, gradients);
  at::Tensor gradient = std::move(gradients[0]);
  return is_own(gradient, leaf) ? gradient : own_copy(gradient, leaf);
}

bool has_stream(Node& node) { return stream_of(node).has_value(); }

DeviceWork::Scope::Scope(DeviceWork& work, Node& node) {
  const auto stream = stream_of(node);
  if (!stream) return;
  if (work.last_ && *work.last_ != *stream) work.last_->synchronize();
  work.last_ = stream;
  guard_.reset_stream(*stream);
}

void DeviceWork::adopt(const Tensors& made) {
  for (const at::Tensor& each : made) {
    if (!each.defined() || each.device().is_cpu()) continue;
    c10::impl::VirtualGuardImpl(each.device().type()).getStream(each.device()).synchronize();
  }
}

void DeviceWork::finish() {
  if (last_) last_->synchronize();
  last_.reset();
}

}  // namespace weft::autograd

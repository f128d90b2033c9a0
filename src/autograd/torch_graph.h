// Weft's only view of torch's autograd graph: edges, nodes, and how one of them is run.
//
// Only torch_graph.h, torch_graph.cpp and leaf_hook.cpp depend on the insides of libtorch's engine.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace weft::autograd {

using torch::autograd::Node;
using Edge = torch::autograd::Edge;
using Edges = std::vector<Edge>;
using Tensors = std::vector<at::Tensor>;

/// Where tensors that came in a message begin in this worker's graph: their gradients go back to
/// the worker that sent them.
class Receipt final : public Node {
 public:
  // Runs as early as it can: others wait for what it sends.
  Receipt(int64_t context, int from, uint64_t message)
      : Node(std::numeric_limits<uint64_t>::max()),
        context_(context),
        from_(from),
        message_(message) {}

  int64_t context() const { return context_; }
  int from() const { return from_; }
  uint64_t message() const { return message_; }

  /// Called by torch's own engine only. Throws: the rest of the graph is on another worker.
  Tensors apply(Tensors&& gradients) override;
  std::string name() const override { return "weft::Receipt"; }

 private:
  const int64_t context_;
  const int from_;
  const uint64_t message_;
};

/// Where the gradient of `tensor` goes; not valid if it needs none.
Edge edge_of(const at::Tensor& tensor);

/// Makes those of `tensors` that require a gradient results of `receipt`, in order.
void begin_at(const std::shared_ptr<Receipt>& receipt, std::span<at::Tensor> tensors);

/// The leaf whose gradients `node` takes; undefined if it is no leaf's.
at::Tensor leaf_of(Node& node);

/// Makes `gradients` fit the inputs that `edges` lead to. Throws std::runtime_error if they cannot.
void fit(const Edges& edges, Tensors& gradients);

/// Adds `gradient` to what came before; both may be undefined or sparse.
void accumulate(at::Tensor& sum, at::Tensor gradient);

/// The hooks on the tensors that `node` was recorded for.
Tensors run_hooks(Node& node, Tensors gradients);
/// Runs an inner node with its hooks: what its next edges get. Gradient mode must be off.
Tensors run_inner(Node& node, Tensors gradients, bool retain_graph);
/// Runs the hooks of a leaf's node: the gradient to be kept.
at::Tensor run_leaf(Node& node, const at::Tensor& leaf, Tensors gradients);

/// Whether the hooks that run on this thread are those of a leaf in a pass of Weft's, and not in
/// one of torch's own engine.
bool is_leaf_of_pass();

bool has_stream(Node& node);

/// Orders the work that nodes leave with an accelerator: each of them may use what any before it
/// made, whatever stream that was on.
class DeviceWork {
 public:
  /// While the scope lives, work on this thread goes to the stream of `node`.
  class Scope {
   public:
    Scope(DeviceWork& work, Node& node);

   private:
    c10::OptionalStreamGuard guard_;
  };
  /// Waits for what was made on the current streams.
  static void adopt(const Tensors& made);
  /// Waits for all of it.
  void finish();

 private:
  std::optional<c10::Stream> last_;
};

}  // namespace weft::autograd

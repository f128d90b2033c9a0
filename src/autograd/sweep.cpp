// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/sweep.h"

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::autograd {

void Sweep::find(Node& node, std::vector<Node*>& unseen) {
  const auto [at, is_new] = nodes_.try_emplace(&node);
  ++at->second.awaited;
  if (!is_new) return;
  ++unfinished_;
  unseen.push_back(&node);
}

std::vector<const Receipt*> Sweep::reach(const Edges& edges) {
  std::vector<Node*> unseen;
  for (const Edge& edge : edges) {
    if (!edge.is_valid()) continue;
    starts_.push_back(edge.function);
    find(*edge.function, unseen);
  }
  std::vector<const Receipt*> receipts;
  while (!unseen.empty()) {
    Node* node = unseen.back();
    unseen.pop_back();
    if (const auto* receipt = dynamic_cast<const Receipt*>(node)) {
      if (receipt->context() != context_) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("the graph leads to a tensor that was received in the autograd "
                                "context {}, not in {}; detach() it",
                                receipt->context(), context_));
      }
      receipts.push_back(receipt);
    }
    for (const Edge& edge : node->next_edges()) {
      if (edge.is_valid()) find(*edge.function, unseen);
    }
  }
  return receipts;
}

void Sweep::deliver(const Edges& edges, Tensors gradients) {
  fit(edges, gradients);
  DeviceWork::adopt(gradients);
  hand_on(edges, std::move(gradients));
}

void Sweep::hand_on(const Edges& edges, Tensors gradients) {
  for (size_t i = 0; i < edges.size(); ++i) {
    if (!edges[i].is_valid()) continue;
    Node* node = edges[i].function.get();
    Progress& progress = nodes_.at(node);
    progress.gradients.resize(node->num_inputs());
    const DeviceWork::Scope scope(device_work_, *node);
    accumulate(progress.gradients.at(edges[i].input_nr), std::move(gradients[i]));
    if (--progress.awaited == 0) ready_.push({node->sequence_nr(), arrivals_++, node});
  }
}

Sweep::Outcome Sweep::step(bool retain_graph) {
  Node& node = *ready_.top().node;
  ready_.pop();
  Tensors gradients = std::move(nodes_.at(&node).gradients);
  const DeviceWork::Scope scope(device_work_, node);
  Outcome outcome;
  if (auto* receipt = dynamic_cast<Receipt*>(&node)) {
    outcome.gradients = run_hooks(node, std::move(gradients));
    outcome.receipt = receipt;
  } else if (at::Tensor leaf = leaf_of(node); leaf.defined()) {
    outcome.gradient = run_leaf(node, leaf, std::move(gradients));
    outcome.leaf = std::move(leaf);
  } else {
    Tensors made = run_inner(node, std::move(gradients), retain_graph);
    // A node without a stream of its own, the copy to an accelerator, say, used the current one.
    if (!has_stream(node)) DeviceWork::adopt(made);
    hand_on(node.next_edges(), std::move(made));
  }
  --unfinished_;
  return outcome;
}

}  // namespace weft::autograd

// One worker's part of one backward pass over torch's graph: which nodes it runs, and in what
// order.
//
// A node runs when the gradients of everything that uses its result have come, the node of the
// latest forward operation first, as torch's engine does. No threads, no messages.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/torch_graph.h"

namespace weft::autograd {

class Sweep {
 public:
  explicit Sweep(int64_t context) : context_(context) {}

  /// Adds the nodes that `edges` lead to, which will get gradients through them. Returns the
  /// receipts among these that no earlier call found. Throws kInvalidArgument for a receipt of
  /// another context.
  std::vector<const Receipt*> reach(const Edges& edges);

  /// The gradients that come through `edges`, which were reached: once for each time. Throws
  /// std::runtime_error if they do not fit.
  void deliver(const Edges& edges, Tensors gradients);

  /// The gradients that a step gave: of a receipt, of a leaf, or none.
  struct Outcome {
    const Receipt* receipt = nullptr;  // whose gradients must be sent
    Tensors gradients;
    at::Tensor leaf;  // or a leaf
    at::Tensor gradient;
  };
  bool can_step() const { return !ready_.empty(); }
  /// Whether the next step takes no time to speak of: a leaf's or a receipt's.
  bool next_is_quick() const { return ready_.top().sequence == kAtOnce; }
  /// Runs the next node. Gradient mode must be off. Throws what the node does.
  Outcome step(bool retain_graph);

  /// Whether everything reached has run.
  bool finished() const { return unfinished_ == 0; }
  /// Waits for what an accelerator still does.
  void finish_device_work() { device_work_.finish(); }

 private:
  struct Progress {
    size_t awaited = 0;  // edges that have not delivered
    Tensors gradients;
  };
  struct Ready {
    uint64_t sequence;
    uint64_t arrival;  // the earlier first, where the engine does not say
    Node* node;
    bool operator<(const Ready& other) const {
      return sequence != other.sequence ? sequence < other.sequence : arrival > other.arrival;
    }
  };
  static constexpr uint64_t kAtOnce = std::numeric_limits<uint64_t>::max();
  void find(Node& node, std::vector<Node*>& unseen);
  void hand_on(const Edges& edges, Tensors gradients);

  const int64_t context_;
  std::unordered_map<Node*, Progress> nodes_;
  std::priority_queue<Ready> ready_;
  uint64_t arrivals_ = 0;
  size_t unfinished_ = 0;
  std::vector<std::shared_ptr<Node>> starts_;  // keep all the others
  DeviceWork device_work_;
};

}  // namespace weft::autograd

// Distributed autograd: one backward pass over all workers that took part in a computation.
//
//   weft::autograd::Context context;
//   at::Tensor loss = weft::rpc_sync<forward>("worker1", x).sum();
//   context.backward({loss});
//   at::Tensor gradient = context.gradient(x);
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/agent.h"
#include "weft/export.h"
#include "weft/rref.h"

namespace weft::autograd {

class ContextState;

/// How workers learn which of the tensors they sent will get a gradient.
enum class Mode : uint8_t {
  /// The leader tells them before the pass: messages that the roots do not depend on take no part.
  kExact,
  /// Every tensor sent in the context is taken to get one. Saves the telling; if one gets none, the
  /// pass ends at its timeout.
  kSimple,
};

struct BackwardOptions {
  /// Keep what the pass needs, so that there may be another one through the same graph.
  bool retain_graph = false;
  Mode mode = Mode::kExact;
  /// For the whole pass. Nothing: the agent's default. Zero: no limit; the pass still ends when a
  /// worker fails or a connection that it uses breaks.
  std::optional<Timeout> timeout = std::nullopt;
};

/// Leaf tensors of one worker and their gradients.
using Gradients = std::vector<std::pair<at::Tensor, at::Tensor>>;

/// While it exists and is current on its thread, calls made there are recorded, on all workers they
/// reach, unless gradients are off (at::NoGradGuard). Contexts do not nest; any number may exist on
/// different threads. A Context is destroyed on the thread that made it. Its destruction frees the
/// context on all workers: at once on those that this worker knows to take part; others ask within
/// a third of `Options::rref_lease`.
class WEFT_API Context {
 public:
  /// Throws kInvalidArgument where a context is current already.
  Context();
  explicit Context(Agent& agent);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// The same on all workers.
  int64_t id() const;

  /// Adds the gradients of the sum of `roots`, scalars of this worker's, to the context, on every
  /// worker that has leaves they depend on; `.grad` is not touched. Returns when all are there.
  /// Throws kInvalidArgument for roots without a gradient, and kContextAborted, with the first
  /// cause, if a worker fails or dies: then the context is of no more use anywhere.
  void backward(const std::vector<at::Tensor>& roots, const BackwardOptions& options = {});
  /// The same from a scalar on another worker; see RRef::backward.
  void backward_from(const RRef<at::Tensor>& root, const BackwardOptions& options = {});

  /// The gradient of a leaf of this worker's; undefined if it has none. Throws kContextAborted.
  at::Tensor gradient(const at::Tensor& tensor) const;
  Gradients gradients() const;

 private:
  class Current;
  detail::Ref<ContextState> state_;
  std::unique_ptr<Current> current_;
};

/// The same for functions on other workers. Throw kInvalidArgument if this worker has no part in
/// such a context (any more).
WEFT_API at::Tensor gradient(int64_t context_id, const at::Tensor& tensor);
WEFT_API Gradients gradients(int64_t context_id);
WEFT_API at::Tensor gradient(Agent& agent, int64_t context_id, const at::Tensor& tensor);
WEFT_API Gradients gradients(Agent& agent, int64_t context_id);

/// The id of the context that is current on this thread.
WEFT_API std::optional<int64_t> current_context_id();

/// Counts of this worker's parts in contexts, its own and those of others.
struct Census {
  size_t contexts = 0;
  size_t messages = 0;   // recorded as sent from here
  size_t gradients = 0;  // of leaves
};
WEFT_API Census census();
WEFT_API Census census(Agent& agent);

}  // namespace weft::autograd

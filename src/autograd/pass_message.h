// The messages of a backward pass. autograd/reserved_functions.h says which function takes which.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::autograd {

/// Messages that will get gradients, by the rank of the worker that sent them.
using Reached = std::map<int, std::vector<uint64_t>>;

/// Which pass: passes of a context are numbered from 1.
struct PassId {
  int64_t context = 0;
  uint64_t number = 0;
};

/// sys.autograd.ask names messages of the callee that will get gradients. This is its answer: the
/// messages of other workers that therefore get gradients too.
struct PassAnswer {
  Reached reached;
  uint8_t code = 0;  // an ErrorCode; zero if nothing went wrong
  std::string failure = {};
};

/// The gradients of the tensors of one message, on their way back to the worker that sent it.
struct ReturnedGradients {
  PassId pass;
  uint64_t message = 0;
  std::vector<at::Tensor> gradients;
};

/// The leader orders a worker to run its part. Before, unless `everything` is set, the leader has
/// asked the worker about all of its messages that get gradients.
struct RunOrder {
  PassId pass;
  bool retain_graph = false;
  bool everything = false;                   // all messages get gradients, not only those asked for
  bool report = false;                       // gradients for the leader may come with the report
  std::vector<ReturnedGradients> gradients;  // of the leader's, if it has some already
};

/// The answer to an order, when the worker has nothing left to do. A failure is the call's error
/// instead.
struct RunReport {
  std::vector<ReturnedGradients> gradients;
  bool has_sparse = false;  // some leaf of the worker has a sparse gradient in the context now
};

}  // namespace weft::autograd

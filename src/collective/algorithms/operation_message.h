// The messages that members of a group send each other in an operation.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/error.h"
#include "weft/process_group.h"

namespace weft::collective {

using Tensors = std::vector<at::Tensor>;

enum class Kind : uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kMembership,
  kDeparture,
  kMeeting
};

/// By how many members the gradients are divided while some members have joined.
enum class Divisor : uint8_t { kAll, kPresent };

/// Describes an operation. All members must give the same one.
struct Signature {
  uint8_t kind = 0;
  uint8_t op = 0;         // a ReduceOp; of a membership round a Divisor
  uint8_t type = 0;       // of the elements, as on the wire (wire/dtype.h); 0 if it may differ
  uint8_t on_device = 0;  // 1 if tensors go from accelerator to accelerator
  int32_t root = -1;
  uint64_t tensors = 0;
  uint64_t elements = 0;

  friend bool operator==(const Signature&, const Signature&) = default;
};

/// Throws kInvalidArgument for an operation that cannot be done, such as one on tensors of several
/// types (which only all_gather can).
Signature signature_of(Kind kind, const Tensors& tensors, ReduceOp op = ReduceOp::kSum,
                       int root = -1);
/// "all_reduce (sum) of 3 tensors with 1200 elements of Float"
std::string describe(const Signature& signature);

/// One of several sequences of operations in a group; the group's own is zero.
struct ChannelId {
  uint64_t group = 0;
  uint32_t channel = 0;
};

/// The tensors that one member sends to another in one phase of an operation.
struct Chunk {
  ChannelId channel;
  uint64_t epoch = 0;
  uint64_t number = 0;  // of the operation in its channel
  uint8_t phase = 0;
  Signature signature;
  Tensors tensors;
};

/// The error that another member reports. A code that this build does not know gives kBadMessage.
Error told_error(uint8_t code, const std::string& cause);

/// The answer to a member that sends a chunk, or that waits for one.
struct ChunkReply {
  bool gone = false;  // the group or the channel was destroyed at the member that answers
  uint8_t code = 0;   // the error that it had failed with before, or zero
  std::string cause = {};
};

}  // namespace weft::collective

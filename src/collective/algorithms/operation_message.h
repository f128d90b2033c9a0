// The messages of members of a group in an operation.
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

/// The properties of an operation that all members must agree on.
struct Signature {
  uint8_t kind = 0;
  uint8_t op = 0;
  uint8_t type = 0;       // of the elements, as on the wire (wire/dtype.h); 0 where it may differ
  uint8_t on_device = 0;  // from accelerator to accelerator, or 0
  int32_t root = -1;
  uint64_t tensors = 0;
  uint64_t elements = 0;

  friend bool operator==(const Signature&, const Signature&) = default;
};

/// The signature of an operation on tensors of one type. Throws kInvalidArgument for operations
/// that cannot be done.
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

/// As another member says.
Error told_error(uint8_t code, const std::string& cause);

/// The answer of a member to another that sends it a chunk, or waits for one.
struct ChunkReply {
  bool gone = false;  // its group or module was destroyed there,
  uint8_t code = 0;   // after it had failed with this error, if not zero
  std::string cause = {};
};

}  // namespace weft::collective

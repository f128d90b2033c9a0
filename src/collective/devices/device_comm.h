// How tensors get from one accelerator to another without the CPU.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "collective/algorithms/algorithm.h"
#include "collective/algorithms/fold.h"
#include "collective/algorithms/operation_message.h"

namespace weft::collective {

/// An operation on tensors of one device, in place.
struct DeviceOperation {
  Kind kind = Kind::kAllReduce;
  /// Flat, and with as many elements on all members. For all_gather: one of any shape for each
  /// place, the own with its value. For reduce_scatter: one for each place; only the own may
  /// change.
  Tensors tensors = {};
  Folding folding = {};
  size_t root = 0;
  /// Events that must have happened on the device before.
  std::vector<std::shared_ptr<const c10::Event>> after = {};

  /// Adds the work that this thread has given to `device` so far to `after`.
  void come_after_current_work(at::Device device);
};

/// One member's end of a connection between the accelerators of all members. One thread begins
/// operations, one after the other, in the same order on all members; any thread may call takes().
/// Failures are thrown.
class DeviceComm {
 public:
  virtual ~DeviceComm() = default;

  /// Identifies this member to the others; empty: there can be no connection here.
  virtual std::string identity() = 0;
  /// Whether members with these identities, by place, can be connected. They all say the same.
  virtual bool fits(const std::vector<std::string>& identities) const = 0;
  /// Whether the connection can do such an operation with tensors of `type`.
  virtual bool takes(Kind kind, ReduceOp op, c10::ScalarType type) const = 0;

  /// Called on the first member: the others need the result to connect to it.
  virtual std::string invitation() = 0;
  /// `invitation`: that of the first member.
  virtual void begin_connecting(const std::string& invitation) = 0;
  virtual void begin(const DeviceOperation& work) = 0;
  /// Whether the operation that was begun last is over, and its tensors may be used.
  virtual bool is_over() = 0;

  /// Ends the current operation, whatever the other members do. No operation can be begun
  /// afterwards.
  virtual void abort() noexcept = 0;
};

}  // namespace weft::collective

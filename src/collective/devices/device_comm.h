// The interface to a library that moves tensors between accelerators without the CPU.
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
  /// Flat tensors with the same numbers of elements on all members. all_gather: one tensor of any
  /// shape for each place, of which only the one at the own place has its value already.
  /// reduce_scatter: one tensor for each place; only the one at the own place may be changed.
  Tensors tensors = {};
  Folding folding = {};
  size_t root = 0;
  /// The device must have done the work before these events first.
  std::vector<std::shared_ptr<const c10::Event>> after = {};

  /// Adds to `after` the work that this thread has put on its current stream so far.
  void come_after_current_work(at::Device device);
};

/// One member's end of a connection between the accelerators of all members. One thread begins the
/// operations, one after the other, in the same order on all members; takes() may be called by any
/// thread. Methods throw if they fail.
class DeviceComm {
 public:
  virtual ~DeviceComm() = default;

  /// Tells the others who this member is; empty if this DeviceComm cannot be used here.
  virtual std::string identity() = 0;
  /// Whether members with these identities, by place, can be connected. All members get the same
  /// answer.
  virtual bool fits(const std::vector<std::string>& identities) const = 0;
  /// Whether this DeviceComm can do such an operation with tensors of this type.
  virtual bool takes(Kind kind, ReduceOp op, c10::ScalarType type) const = 0;

  /// What the others need to connect to this member. Only the first member is asked.
  virtual std::string invitation() = 0;
  /// `invitation` is that of the first member.
  virtual void begin_connecting(const std::string& invitation) = 0;
  virtual void begin(const DeviceOperation& work) = 0;
  /// Whether the operation that was begun last is over, and its tensors may be used.
  virtual bool is_over() = 0;

  /// Ends the current operation, whatever the other members do. No other can be begun afterwards.
  virtual void abort() noexcept = 0;
};

}  // namespace weft::collective

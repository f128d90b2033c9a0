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
  /// Flat, and on all members with as many elements. Of all_gather: one of any shape for each
  /// place, the own with its value. Of reduce_scatter: one for each place, of which only the own
  /// may change.
  Tensors tensors = {};
  Folding folding = {};
  size_t root = 0;
  /// What has to happen on the device before.
  std::vector<std::shared_ptr<const c10::Event>> after = {};

  /// That includes all that this thread has had it do so far.
  void come_after_current_work(at::Device device);
};

/// What one member has of a connection between the accelerators of all. What it is to do is begun
/// by one thread, one thing after the other, in the same order on all members; what it takes may be
/// asked by any. Whatever fails throws.
class DeviceComm {
 public:
  virtual ~DeviceComm() = default;

  /// Who this member is, to the others; empty: it cannot be used here.
  virtual std::string identity() = 0;
  /// Whether members with these identities, by place, can be connected. They all say the same.
  virtual bool fits(const std::vector<std::string>& identities) const = 0;
  /// Whether it can do that with such tensors.
  virtual bool takes(Kind kind, ReduceOp op, c10::ScalarType type) const = 0;

  /// What the others need to find this member, which is the first.
  virtual std::string invitation() = 0;
  /// With the first one's.
  virtual void begin_connecting(const std::string& invitation) = 0;
  virtual void begin(const DeviceOperation& work) = 0;
  /// Whether what was begun last is over, and its tensors may be used.
  virtual bool is_over() = 0;

  /// Ends what is going on, whatever the others do. Nothing can be begun afterwards.
  virtual void abort() noexcept = 0;
};

}  // namespace weft::collective

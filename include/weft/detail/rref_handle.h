// The handle that all copies of a remote reference share on one worker.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "weft/agent.h"
#include "weft/detail/ref_counted.h"
#include "weft/detail/rref_object.h"
#include "weft/export.h"
#include "weft/future.h"
#include "weft/worker_info.h"

namespace weft::detail {

/// This worker's hold on an object, its own or another's; shared by all copies of an RRef.
class WEFT_API RRefHandle final : public RefCounted {
 public:
  RRefHandle(std::weak_ptr<rref::Keeper> keeper, WorkerInfo owner, const RRefId& id,
             Ref<RRefObject> object)
      : keeper_(std::move(keeper)), owner_(std::move(owner)), id_(id), object_(std::move(object)) {}

  const WorkerInfo& owner() const { return owner_; }
  const RRefId& id() const { return id_; }
  /// Null unless it lives here.
  RRefObject* object() const { return object_.get(); }
  /// Both throw kShuttingDown if the agent is gone.
  std::shared_ptr<rref::Keeper> keeper() const;
  std::shared_ptr<rpc::AgentCore> agent() const;

  void set_creation(Future<void> creation);
  const std::optional<Future<void>>& creation() const { return creation_; }
  bool confirmed() const;
  /// Throws the error of the creation, if this worker asked for it and it has failed.
  void check_created() const;
  /// Like check_created(), but waits up to 100 ms for the creation's outcome: the owner has just
  /// said that the object is lost, so the creation's own, better error is probably on its way.
  void check_created_soon() const;

 private:
  ~RRefHandle() override;

  const std::weak_ptr<rref::Keeper> keeper_;
  const WorkerInfo owner_;
  const RRefId id_;
  const Ref<RRefObject> object_;
  std::optional<Future<void>> creation_;  // the call that makes it, on the worker that asked
};

}  // namespace weft::detail

// Everything an agent has of remote references: its objects, and its holds on those of others.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rpc/agent_core.h"
#include "rpc/agent_extension.h"
#include "rref/owned_objects.h"
#include "rref/owner_sessions.h"
#include "weft/detail/rref_core.h"
#include "weft/detail/rref_handle.h"
#include "weft/rref_census.h"

namespace weft::rref {

using detail::RRefHandle;

class Keeper final : public rpc::AgentExtension, public std::enable_shared_from_this<Keeper> {
 public:
  static std::shared_ptr<Keeper> make(rpc::AgentCore& agent);
  static Keeper& of(rpc::AgentCore& agent);

  /// Throws kShuttingDown if the agent is gone.
  std::shared_ptr<rpc::AgentCore> agent() const;
  const std::shared_ptr<rpc::Runtime>& runtime() const { return runtime_; }
  /// Objects of this worker.
  OwnedObjects& objects() { return *objects_; }
  /// References to objects of others.
  OwnerSessions& sessions() { return *sessions_; }

  // Handles: what all copies of a reference share.
  Ref<RRefHandle> make_local(const detail::RRefType& type);
  Ref<RRefHandle> make_remote(int owner_rank);
  /// Keeps the handle with the call; an object of this worker's own is entered into the table.
  void use(Encoder& arguments, const Ref<RRefHandle>& handle);
  void encode(Encoder& out, const Ref<RRefHandle>& handle);
  Ref<RRefHandle> decode(Decoder& in, detail::Arrival& arrival, const detail::RRefType& type);
  void on_creation_failed(const RRefId& id);
  void on_handle_gone(const RRefId& id, const std::optional<Future<void>>& creation);
  void on_object_gone(const RRefId& id, const RRefObject* object);

  RRefCensus census();

  // rpc::AgentExtension:
  rpc::Idleness idleness() override;
  std::string unfinished() override;
  void on_stopping() override;
  void keep_for_receiver(const WorkerInfo& receiver,
                         const std::vector<Ref<detail::RefCounted>>& objects) override;
  void on_member_gone(const WorkerInfo& member, const Error& why) override;
  void describe(DebugInfo& info) override;

 private:
  explicit Keeper(rpc::AgentCore& agent);

  Ref<RRefHandle> handle_for_hold(const WorkerInfo& owner, const RRefId& id);
  Ref<RRefHandle> decode_own(const RRefId& id, bool may_precede_creation, detail::Arrival& arrival,
                             const detail::RRefType& type);
  Ref<RRefHandle> decode_other(const RRefId& id, bool may_precede_creation,
                               detail::Arrival& arrival, const WorkerInfo& owner);
  void report_leaks();

  const std::shared_ptr<rpc::Runtime> runtime_;
  std::shared_ptr<OwnedObjects> objects_;
  std::shared_ptr<OwnerSessions> sessions_;
};

}  // namespace weft::rref

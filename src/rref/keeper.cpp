// SPDX-License-Identifier: BSD-3-Clause
#include "rref/keeper.h"

#include <exception>

#include <fmt/format.h>

#include "base/log.h"
#include "rref/id_text.h"
#include "rref/leak_report.h"
#include "rref/reserved_functions.h"
#include "rref/worker_names.h"

namespace weft::rref {

namespace {

// How a reference is encoded: its first byte.
enum class Encoding : uint8_t {
  kNone,
  kCreated,
  kEarly,  // its creation may still be on its way to the owner
};

std::shared_ptr<rpc::AgentExtension> make_keeper(rpc::AgentCore& agent) {
  register_reserved_functions();
  return Keeper::make(agent);
}
const size_t extension_index = rpc::register_agent_extension(&make_keeper);

}  // namespace

Keeper::Keeper(rpc::AgentCore& agent) : runtime_(agent.runtime().shared_from_this()) {}

std::shared_ptr<Keeper> Keeper::make(rpc::AgentCore& agent) {
  const std::shared_ptr<Keeper> keeper(new Keeper(agent));
  keeper->objects_ = std::make_shared<OwnedObjects>(keeper->runtime_, keeper);
  keeper->sessions_ = std::make_shared<OwnerSessions>(keeper->runtime_);
  return keeper;
}

Keeper& Keeper::of(rpc::AgentCore& agent) {
  return static_cast<Keeper&>(agent.extension(extension_index));
}

std::shared_ptr<rpc::AgentCore> Keeper::agent() const {
  if (auto agent = runtime_->agent.lock()) return agent;
  throw Error(ErrorCode::kShuttingDown, "a remote reference was used after the agent's end");
}

// --- handles ---------------------------------------------------------------------------------

Ref<RRefHandle> Keeper::make_local(const detail::RRefType& type) {
  const Ref<RRefObject> object = objects_->make(/*may_be_awaited=*/false);
  object->expect_type(type);
  return detail::make_ref<RRefHandle>(weak_from_this(), runtime_->self().info, object->id(),
                                      object);
}

Ref<RRefHandle> Keeper::make_remote(int owner_rank) {
  const WorkerInfo& owner = runtime_->group.members.at(static_cast<size_t>(owner_rank)).info;
  if (owner_rank == runtime_->self().info.id) {
    const Ref<RRefObject> object = objects_->make(/*may_be_awaited=*/true);
    return detail::make_ref<RRefHandle>(weak_from_this(), owner, object->id(), object);
  }
  return handle_for_hold(owner, sessions_->create(owner_rank));
}

// The handle answers for a hold on an object of another worker; without memory for it, the hold
// ends.
Ref<RRefHandle> Keeper::handle_for_hold(const WorkerInfo& owner, const RRefId& id) {
  try {
    return detail::make_ref<RRefHandle>(weak_from_this(), owner, id, Ref<RRefObject>());
  } catch (...) {
    sessions_->drop(id, std::nullopt);
    throw;
  }
}

void Keeper::on_creation_failed(const RRefId& id) {
  if (runtime_->is_forked_copy()) return;
  // A creation fails on whatever thread finds that out.
  runtime_->io.post_task([weak = weak_from_this(), id] {
    const auto keeper = weak.lock();
    if (!keeper) return;
    if (id.owner == self_of(*keeper->runtime_)) {
      keeper->objects_->on_creation_failed(id);
    } else {
      keeper->sessions_->on_creation_failed(id);
    }
  });
}

void Keeper::on_handle_gone(const RRefId& id, const std::optional<Future<void>>& creation) {
  if (!runtime_->is_forked_copy()) sessions_->drop(id, creation);
}

void Keeper::on_object_gone(const RRefId& id, const RRefObject* object) {
  if (!runtime_->is_forked_copy()) objects_->on_object_gone(id, object);
}

void Keeper::use(Encoder& arguments, const Ref<RRefHandle>& handle) {
  if (handle->object()) objects_->share(*handle->object());
  arguments.keep(handle);
}

void Keeper::encode(Encoder& out, const Ref<RRefHandle>& handle) {
  const bool early = handle->creation() && !handle->creation()->ready();
  if (handle->object()) {
    objects_->share(*handle->object());
  } else {
    handle->check_created();
    // The receiver waits for a creation that may fail: then the owner must be told.
    if (early) sessions_->watch_creation(handle->id(), *handle->creation());
  }
  out.scalar(static_cast<uint8_t>(early ? Encoding::kEarly : Encoding::kCreated));
  Codec<RRefId>::encode(out, handle->id());
  out.keep(handle);
}

Ref<RRefHandle> Keeper::decode(Decoder& in, detail::Arrival& arrival,
                               const detail::RRefType& type) {
  const auto kind = in.scalar<uint8_t>();
  if (kind == static_cast<uint8_t>(Encoding::kNone)) return {};
  if (kind > static_cast<uint8_t>(Encoding::kEarly)) {
    Decoder::fail(fmt::format("a reference of kind {}", kind));
  }
  const bool early = kind == static_cast<uint8_t>(Encoding::kEarly);
  const auto id = Codec<RRefId>::decode(in);
  const int owner = rank_of(*runtime_, id.owner);
  if (owner < 0) {
    throw Error(ErrorCode::kRRefLost,
                fmt::format("reference {} is to an object of a worker that is not in this group",
                            text(id)));
  }
  if (owner == runtime_->self().info.id) return decode_own(id, early, arrival, type);
  return decode_other(id, early, arrival, runtime_->group.members[static_cast<size_t>(owner)].info);
}

Ref<RRefHandle> Keeper::decode_own(const RRefId& id, bool may_precede_creation,
                                   detail::Arrival& arrival, const detail::RRefType& type) {
  Ref<RRefObject> object;
  std::exception_ptr lost;
  try {
    // A reference in a reply may overtake the creation, which travels on another connection.
    object = may_precede_creation ? objects_->find_or_await(id) : objects_->find(id);
  } catch (const Error&) {
    lost = std::current_exception();
  }
  // Not before this worker holds the object: its sender may have the last hold, and drops it then.
  if (arrival.kind() == detail::Arrival::Kind::kReply) {
    sessions_->accept(worker_of(*runtime_, arrival.from().id), id);
  }
  if (lost) std::rethrow_exception(lost);
  object->expect_type(type);
  return detail::make_ref<RRefHandle>(weak_from_this(), runtime_->self().info, id,
                                      std::move(object));
}

Ref<RRefHandle> Keeper::decode_other(const RRefId& id, bool may_precede_creation,
                                     detail::Arrival& arrival, const WorkerInfo& owner) {
  const bool in_reply = arrival.kind() == detail::Arrival::Kind::kReply;
  const Worker sender = worker_of(*runtime_, arrival.from().id);
  OwnerSessions::Arrival arrived = sessions_->arrive(id, may_precede_creation);
  const Ref<RRefHandle> handle = handle_for_hold(owner, id);
  if (arrived.confirmed) {
    // The sender of the reply holds the object until this worker's registration is answered.
    if (in_reply) {
      arrived.confirmed->on_ready(
          [weak = std::weak_ptr(sessions_), sender, id](const Future<void>&) {
            if (auto sessions = weak.lock()) sessions->accept(sender, id);
          });
    }
    arrival.wait_for(std::move(*arrived.confirmed));
    sessions_->talk_soon();
  } else if (in_reply) {
    sessions_->accept(sender, id);
  }
  if (arrived.state == Holdings::State::kLost) {
    throw Error(ErrorCode::kRRefLost,
                fmt::format("the object {} on {} is lost", text(id), owner.name));
  }
  return handle;
}

// --- the agent's life ------------------------------------------------------------------------

void Keeper::keep_for_receiver(const WorkerInfo& receiver,
                               const std::vector<Ref<detail::RefCounted>>& objects) {
  objects_->keep_for_receiver(receiver, objects);
}

rpc::Idleness Keeper::idleness() {
  return {sessions_->is_idle(), sessions_->messages() + objects_->messages()};
}

std::string Keeper::unfinished() {
  return "owners have not confirmed what this worker told them of its references";
}

void Keeper::on_stopping() {
  if (runtime_->options.rref_leak_report) report_leaks();
  objects_->stop();
  sessions_->stop();
}

void Keeper::on_member_gone(const WorkerInfo& member, const Error&) {
  sessions_->on_owner_lost(worker_of(*runtime_, member.id));
}

void Keeper::report_leaks() {
  for (const std::string& leak : describe_leaks(census())) {
    base::log(LogLevel::kWarning, runtime_->name(), "{}", leak);
  }
}

void Keeper::describe(DebugInfo& info) {
  info.counters["rrefs.owned"] = objects_->objects();
  info.counters["rrefs.holders"] = objects_->holders();
  info.counters["rrefs.held"] = sessions_->references();
  info.counters["rrefs.unconfirmed"] = sessions_->unconfirmed();
}

RRefCensus Keeper::census() {
  RRefCensus census;
  census.owned = objects_->census();
  for (const rpc::Member& member : runtime_->group.members) {
    if (const size_t count = sessions_->references(member.incarnation))
      census.held[member.info.name] = count;
  }
  return census;
}

}  // namespace weft::rref

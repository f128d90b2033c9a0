// How the keeper's references travel.
// SPDX-License-Identifier: BSD-3-Clause
#include <exception>

#include <fmt/format.h>

#include "rref/id_text.h"
#include "rref/keeper.h"

namespace weft::rref {

void Keeper::encode(Encoder& out, const Ref<RRefHandle>& handle) {
  const bool early = handle->creation() && !handle->creation()->ready();
  if (handle->object()) {
    // From now on others may ask for it.
    Lock lock(mutex_);
    if (objects_.emplace(handle->id(), handle->object()).second) ledger_.begin_local(handle->id());
  } else {
    handle->check_created();
    // Whoever gets it waits for a creation that may fail: then the owner must be told.
    if (early) watch_creation(handle->id(), *handle->creation());
  }
  out.scalar<uint8_t>(early ? 2 : 1);
  Codec<RRefId>::encode(out, handle->id());
  out.keep(handle);
}

Ref<RRefHandle> Keeper::decode(Decoder& in, detail::Arrival& arrival,
                               const detail::RRefType& type) {
  const auto kind = in.scalar<uint8_t>();
  if (kind == 0) return {};
  if (kind > 2) Decoder::fail(fmt::format("a reference of kind {}", kind));
  const auto id = Codec<RRefId>::decode(in);
  const int owner = rank(id.owner);
  if (owner < 0) {
    throw Error(ErrorCode::kRRefLost,
                fmt::format("reference {} is to an object of a worker that is not in this group",
                            text(id)));
  }
  const bool in_reply = arrival.kind() == detail::Arrival::Kind::kReply;
  const Worker sender = worker(arrival.from().id);
  const WorkerInfo& info = runtime_->group.members[static_cast<size_t>(owner)].info;
  if (owner == runtime_->self().info.id) {
    // What comes in a reply may overtake the creation, which came another way.
    Ref<RRefObject> object;
    std::exception_ptr lost;
    try {
      object = kind == 2 ? find_or_await(id) : find(id);
    } catch (const Error&) {
      lost = std::current_exception();
    }
    // Not before it is ours: whoever sent it may have the last hold on it, and drops it then.
    if (in_reply) accept(sender, id);
    if (lost) std::rethrow_exception(lost);
    object->expect_type(type);
    return detail::make_ref<RRefHandle>(weak_from_this(), info, id, std::move(object));
  }
  Lock lock(mutex_);
  check_not_stopped();
  const Holdings::State state = holdings_.arrive(id, kind == 2, runtime_->clock->now());
  // From here on the handle answers for the hold.
  const auto handle = detail::make_ref<RRefHandle>(weak_from_this(), info, id, Ref<RRefObject>());
  const bool waits = state == Holdings::State::kRegistering || state == Holdings::State::kCreating;
  std::optional<Future<void>> confirmed, creating;
  if (waits) confirmed = confirmation(id);
  if (auto found = creations_.find(id); waits && found != creations_.end())
    creating = found->second;
  lock.unlock();
  if (creating) watch_creation(id, *creating);
  if (waits) {
    // Who sent it in a reply holds it for us until we have registered, or cannot.
    if (in_reply) {
      confirmed->on_ready([weak = weak_from_this(), sender, id](const Future<void>&) {
        if (auto keeper = weak.lock()) keeper->accept(sender, id);
      });
    }
    arrival.wait_for(std::move(*confirmed));
    talk_soon();
  } else if (in_reply) {
    accept(sender, id);
  }
  if (state == Holdings::State::kLost) {
    throw Error(ErrorCode::kRRefLost,
                fmt::format("the object {} on {} is lost", text(id), info.name));
  }
  return handle;
}

// Tells a sender that it need not hold for us what came in its reply.
void Keeper::accept(Worker sender, const RRefId& id) {
  {
    Lock lock(mutex_);
    if (stopped_) return;
    holdings_.accept(sender, id, runtime_->clock->now());
  }
  talk_before_long();
}

}  // namespace weft::rref

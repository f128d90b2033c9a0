// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/rref_core.h"

#include <fmt/format.h>

#include "base/demangle.h"
#include "rref/keeper.h"

namespace weft::detail {

// --- the object ------------------------------------------------------------------------------

RRefObject::RRefObject(std::weak_ptr<rref::Keeper> keeper, const RRefId& id)
    : keeper_(std::move(keeper)), id_(id), settled_(promise_.future()) {}

RRefObject::~RRefObject() {
  if (auto keeper = keeper_.lock()) keeper->on_object_gone(id_, this);
  if (value_) destroy_(value_);
}

void RRefObject::set_type(const RRefType& type) {
  std::lock_guard lock(mutex_);
  type_ = type;
}

void RRefObject::check_type(const RRefType& type) const {
  std::lock_guard lock(mutex_);
  if (!type_ || *type_->info == *type.info) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a reference to {} is used as one to {}", base::demangle(*type_->info),
                          base::demangle(*type.info)));
}

std::string RRefObject::type_name() const {
  std::lock_guard lock(mutex_);
  return type_ ? base::demangle(*type_->info) : "(not created yet)";
}

void RRefObject::fill(void* value, void (*destroy)(void*)) {
  value_ = value;
  destroy_ = destroy;
  promise_.set_value();
}

void RRefObject::fail(std::exception_ptr error) { promise_.set_exception(std::move(error)); }

void* RRefObject::value() const {
  auto& state = FutureAccess::state(settled_);
  if (state.failed()) state.rethrow();
  return value_;
}

std::optional<Future<void>> RRefObject::take_turn() {
  std::lock_guard lock(mutex_);
  if (!std::exchange(busy_, true)) return std::nullopt;
  turns_.emplace_back();
  return turns_.back().future();
}

void RRefObject::end_turn() {
  std::unique_lock lock(mutex_);
  if (turns_.empty()) {
    busy_ = false;
    return;
  }
  Promise<void> next = std::move(turns_.front());
  turns_.pop_front();
  lock.unlock();
  next.set_value();
}

// --- the handle ------------------------------------------------------------------------------

RRefHandle::~RRefHandle() {
  if (object_) return;
  if (auto keeper = keeper_.lock()) keeper->on_handle_gone(id_, creation_);
}

std::shared_ptr<rref::Keeper> RRefHandle::keeper() const {
  if (auto keeper = keeper_.lock()) return keeper;
  throw Error(ErrorCode::kShuttingDown,
              fmt::format("a reference to an object on {} was used after shutdown", owner_.name));
}

std::shared_ptr<rpc::AgentCore> RRefHandle::agent() const { return keeper()->agent(); }

void RRefHandle::set_creation(Future<void> creation) {
  creation_ = std::move(creation);
  if (!object_) keeper()->on_creation_asked(id_, *creation_);
}

bool RRefHandle::confirmed() const {
  if (object_) return true;
  if (creation_) {
    return creation_->ready() &&
           (!creation_->error() || creation_->error()->code() == ErrorCode::kRemoteError);
  }
  return keeper()->is_held(id_);
}

void RRefHandle::check_created() const {
  if (!creation_ || !creation_->ready()) return;
  const std::optional<Error> error = creation_->error();
  if (!error) return;
  if (error->code() == ErrorCode::kRemoteError) throw *error;
  const bool unreachable = error->code() == ErrorCode::kUnavailable ||
                           error->code() == ErrorCode::kOutcomeUnknown ||
                           error->code() == ErrorCode::kPeerLost;
  const Error failed(
      unreachable ? ErrorCode::kRRefLost : error->code(),
      fmt::format("the object on {} was not created, or it is not known whether it was: {}",
                  owner_.name, error->message()));
  throw error->may_have_run() ? failed.after_sending() : failed.before_sending();
}

// --- between the typed code and the agent ----------------------------------------------------

Ref<RRefHandle> make_local_rref(Agent& agent, const RRefType& type) {
  return rref::Keeper::of(*AgentAccess::core(agent)).make_local(type);
}

std::pair<Ref<RRefHandle>, RRefOrder> make_remote_rref(rpc::AgentCore& agent,
                                                       const Destination& to) {
  return rref::Keeper::of(agent).make_remote(agent.peer(to).info().id);
}

void encode_rref(Encoder& out, const Ref<RRefHandle>& handle) {
  if (!handle) {
    out.scalar<uint8_t>(0);
    return;
  }
  handle->keeper()->encode(out, handle);
}

Ref<RRefHandle> decode_rref(Decoder& in) {
  if (!in.arrival()) {
    throw Error(ErrorCode::kInvalidArgument,
                "a remote reference travels only in calls and their results");
  }
  return rref::Keeper::of(in.arrival()->agent()).decode(in, *in.arrival());
}

Ref<RRefObject> decode_rref_target(Decoder& in, const RRefType& type) {
  const auto id = Codec<RRefId>::decode(in);
  Ref<RRefObject> object = rref::Keeper::of(in.arrival()->agent()).find(id);
  object->check_type(type);
  if (!object->is_settled()) in.arrival()->wait_for(object->settled());
  if (type.serialized) {
    if (auto turn = object->take_turn()) in.arrival()->wait_for(std::move(*turn));
  }
  return object;
}

Ref<RRefObject> decode_rref_order(Decoder& in, const RRefType& type) {
  const auto order = Codec<RRefOrder>::decode(in);
  return rref::Keeper::of(in.arrival()->agent()).begin_creation(order, in.arrival()->from(), type);
}

void start_rref_call(const RRefHandle& handle, OutgoingCall& call, const FunctionEntry& function,
                     std::optional<Timeout> timeout, bool caller_waits, const Encoder& arguments) {
  handle.keeper()->agent()->start_call(call, function, Destination(handle.owner().id, timeout),
                                       caller_waits, arguments);
}

std::optional<Error> translate_rref_error(const RRefHandle& handle, const Error& error,
                                          Ref<FutureCore> future) {
  const auto lost = [owner = handle.owner().name](const Error& cause) {
    const Error translated(
        ErrorCode::kRRefLost,
        fmt::format("{}, the owner of the object, is gone: {}", owner, cause.message()));
    return cause.may_have_run() ? translated.after_sending() : translated.before_sending();
  };
  if (error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kPeerLost)
    return lost(error);
  if (error.code() != ErrorCode::kOutcomeUnknown) return error;
  // The connection broke. Whether its owner is gone too shows when it is tried again.
  handle.keeper()
      ->probe(handle.owner().id)
      .on_ready([future = std::move(future), error, lost](const Future<void>& probe) {
        const std::optional<Error> answer = probe.error();
        const bool gone = answer && (answer->code() == ErrorCode::kUnavailable ||
                                     answer->code() == ErrorCode::kPeerLost ||
                                     answer->code() == ErrorCode::kOutcomeUnknown);
        future->settle_error(gone ? lost(error) : error);
      });
  return std::nullopt;
}

}  // namespace weft::detail

namespace weft {

RRefCensus rref_census(Agent& agent) {
  return rref::Keeper::of(*detail::AgentAccess::core(agent)).census();
}
RRefCensus rref_census() { return rref_census(current_agent()); }

}  // namespace weft

// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/rref_core.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "rref/keeper.h"
#include "weft/current_call.h"

namespace weft::detail {

Ref<RRefHandle> make_local_rref(Agent& agent, const RRefType& type) {
  return rref::Keeper::of(*AgentAccess::core(agent)).make_local(type);
}

Ref<RRefHandle> make_remote_rref(rpc::AgentCore& agent, const Destination& to) {
  return rref::Keeper::of(agent).make_remote(agent.peer(to).info().id);
}

void use_rref(Encoder& arguments, const Ref<RRefHandle>& handle) {
  handle->keeper()->use(arguments, handle);
}

void encode_rref(Encoder& out, const Ref<RRefHandle>& handle) {
  if (!handle) {
    out.scalar<uint8_t>(0);
    return;
  }
  handle->keeper()->encode(out, handle);
}

Ref<RRefHandle> decode_rref(Decoder& in, const RRefType& type) {
  if (!in.arrival()) {
    throw Error(ErrorCode::kInvalidArgument,
                "a remote reference travels only in calls and their results");
  }
  return rref::Keeper::of(in.arrival()->agent()).decode(in, *in.arrival(), type);
}

RRefUse decode_rref_target(Decoder& in, const RRefType& type) {
  const auto id = Codec<RRefId>::decode(in);
  Arrival& arrival = *in.arrival();
  RRefUse use(rref::Keeper::of(arrival.agent()).objects().find_for_call(id, arrival.from()));
  use.object().expect_type(type);
  if (!use.object().is_settled()) arrival.wait_for(use.object().settled());
  if (type.serialized) {
    if (auto turn = use.take_turn()) arrival.wait_for(std::move(*turn));
  }
  return use;
}

Ref<RRefObject> decode_rref_creation(Decoder& in, const RRefType& type) {
  const auto id = Codec<RRefId>::decode(in);
  return rref::Keeper::of(in.arrival()->agent())
      .objects()
      .begin_creation(id, in.arrival()->from(), type);
}

void start_rref_call(const RRefHandle& handle, OutgoingCall& call, const FunctionEntry& function,
                     const CallOptions& options, bool caller_waits, Encoder& arguments) {
  handle.keeper()->agent()->start_call(call, function, Destination(handle.owner().id, options),
                                       caller_waits, arguments);
}

RRefCreation::RRefCreation(const RRefHandle& made) : keeper_(made.keeper()), id_(made.id()) {}

void RRefCreation::on_failed(const Error& error) noexcept {
  if (error.code() == ErrorCode::kRemoteError) return;  // it was run: the object has the error
  try {
    if (auto keeper = keeper_.lock()) keeper->on_creation_failed(id_);
  } catch (const std::exception&) {
    // No memory: the owner is told when the last copy of the reference goes.
  }
}

RRefTimeLimit::RRefTimeLimit(const RRefHandle& handle, const CallOptions& options)
    : options_(options),
      limit_(options.timeout.value_or(
          Timeout(handle.keeper()->runtime()->default_timeout.load(std::memory_order_relaxed)))) {}

CallOptions RRefTimeLimit::left() const {
  CallOptions options = options_;
  options.timeout = limit_;
  if (limit_.count() > 0) {
    const Timeout passed = std::chrono::steady_clock::now() - began_;
    options.timeout = std::max<Timeout>(limit_ - passed, std::chrono::microseconds(1));
  }
  return options;
}

void await_object(const RRefHandle& handle, const CallOptions& options) {
  const RRefObject& object = *handle.object();
  if (object.is_settled()) return;
  // Nobody wakes a function whose caller gives up.
  const Timeout look = current_call::exists() ? std::chrono::milliseconds(100) : Timeout::max();
  const SteadyTime began = std::chrono::steady_clock::now();
  const RRefTimeLimit limit(handle, options);
  const BlockingRegion region;
  for (;;) {
    Timeout left = *limit.left().timeout;
    if (left.count() < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a timeout of {} ns for the value of a reference", left.count()));
    }
    if (left.count() == 0) left = Timeout::max();
    const bool given_up = current_call::cancelled();
    if (const auto callers = current_call::remaining()) left = std::min<Timeout>(left, *callers);
    if (object.settled().wait_for(std::clamp(left, Timeout(0), look))) return;
    if (left <= look && left != Timeout::max()) {
      const auto waited = std::chrono::steady_clock::now() - began;
      throw Error(ErrorCode::kTimeout,
                  fmt::format("the object of the reference, which is made on this worker, was not "
                              "there within {} ms",
                              waited / std::chrono::milliseconds(1)));
    }
    if (given_up) {
      throw Error(ErrorCode::kCancelled,
                  "the caller gave up while the object of the reference was not made yet");
    }
  }
}

std::optional<Error> translate_rref_error(const RRefHandle& handle, const Error& error,
                                          Ref<FutureCore> future) {
  const auto lost = [owner = handle.owner().name](const Error& cause) {
    const Error translated(
        ErrorCode::kRRefLost,
        fmt::format("{}, the owner of the object, is gone: {}", owner, cause.message()));
    return cause.may_have_run() ? translated.after_sending() : translated.before_sending();
  };
  if (!rpc::Liveness::leaves_open_whether_alive(error)) return error;
  // A member that is known to be gone, or will be in a moment.
  const auto& runtime = handle.keeper()->runtime();
  if (runtime->liveness.why_gone(handle.owner().id)) return lost(error);
  runtime->liveness.when_known(
      handle.owner().id,
      [future = std::move(future), error, lost, runtime,
       pending = std::make_shared<rpc::Outstanding>(runtime)](const std::optional<Error>& gone) {
        const bool is_gone = gone && gone->code() == ErrorCode::kPeerLost;
        future->settle_error(is_gone ? lost(error) : error, &runtime->io);
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

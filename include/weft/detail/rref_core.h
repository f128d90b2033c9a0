// Remote references without their types: what the typed code in weft/rref.h needs from the agent.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "weft/agent.h"
#include "weft/codec.h"
#include "weft/destination.h"
#include "weft/detail/outgoing_call.h"
#include "weft/detail/rref_handle.h"
#include "weft/detail/rref_object.h"
#include "weft/export.h"

namespace weft::detail {

/// An object of this worker's own, still to be filled.
WEFT_API Ref<RRefHandle> make_local_rref(Agent& agent, const RRefType& type);
/// A reference to an object on `to`, whose creation is still to be asked for.
WEFT_API Ref<RRefHandle> make_remote_rref(rpc::AgentCore& agent, const Destination& to);

/// For a call through the reference: holds the object until the call has its outcome. An object of
/// this worker's own can be found by its id from now on, which must be before the call is sent.
WEFT_API void use_rref(Encoder& arguments, const Ref<RRefHandle>& handle);

WEFT_API void encode_rref(Encoder& out, const Ref<RRefHandle>& handle);
WEFT_API Ref<RRefHandle> decode_rref(Decoder& in, const RRefType& type);

/// The object a call is for, on its owner: there when the function starts.
WEFT_API RRefUse decode_rref_target(Decoder& in, const RRefType& type);
/// The object a call is to make, on its owner.
WEFT_API Ref<RRefObject> decode_rref_creation(Decoder& in, const RRefType& type);

WEFT_API void start_rref_call(const RRefHandle& handle, OutgoingCall& call,
                              const FunctionEntry& function, const CallOptions& options,
                              bool caller_waits, Encoder& arguments);

/// The call that makes the object of a reference. Should it fail, the owner is told: calls through
/// the reference may have arrived there and wait for the object.
class WEFT_API RRefCreation final : public TypedCall<void> {
 public:
  explicit RRefCreation(const RRefHandle& made);
  void on_failed(const Error& error) noexcept override;

 private:
  const std::weak_ptr<rref::Keeper> keeper_;  // the handle keeps this call
  const RRefId id_;
};

/// The time that a use of a reference may take, over all the calls it makes.
class WEFT_API RRefTimeLimit {
 public:
  RRefTimeLimit(const RRefHandle& handle, const CallOptions& options);
  /// For the next call.
  CallOptions left() const;

 private:
  const CallOptions options_;
  const Timeout limit_;  // theirs, or the agent's default; zero: none
  const SteadyTime began_ = std::chrono::steady_clock::now();
};

/// Waits on the owner until the object of the reference is made or its creation has failed, for as
/// long as a call with these options would wait. Throws kTimeout, and kCancelled if the caller of
/// the function that this thread runs has given up.
WEFT_API void await_object(const RRefHandle& handle, const CallOptions& options);

/// Translates the error of a call through a reference: kRRefLost if the owner is gone. Returns
/// nothing if that is not known yet; then `future` is settled as soon as it is known.
WEFT_API std::optional<Error> translate_rref_error(const RRefHandle& handle, const Error& error,
                                                   Ref<FutureCore> future);

/// A call through a reference.
template <typename R>
class RRefCall final : public TypedCall<R> {
 public:
  explicit RRefCall(Ref<RRefHandle> handle) : handle_(std::move(handle)) {}
  std::optional<Error> translate(const Error& error) override {
    this->leave_to_continuation();
    return translate_rref_error(*handle_, error, Ref<FutureCore>::share(this));
  }

 private:
  const Ref<RRefHandle> handle_;
};

}  // namespace weft::detail

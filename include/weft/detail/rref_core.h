// Remote references without their types: the object on its owner, the handle on any worker, and
// what the typed code in weft/rref.h needs from the agent.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include "weft/agent.h"
#include "weft/codec.h"
#include "weft/destination.h"
#include "weft/detail/outgoing_call.h"
#include "weft/detail/ref_counted.h"
#include "weft/detail/rref_id.h"
#include "weft/future.h"
#include "weft/worker_info.h"

namespace weft::rref {
class Keeper;
}

namespace weft::detail {

/// What an object is, as its owner needs to know it.
struct RRefType {
  const std::type_info* info;
  bool serialized;
};

/// An object that others may refer to, on its owner: awaited, then there or failed. Thread-safe.
class RRefObject final : public RefCounted {
 public:
  RRefObject(std::weak_ptr<rref::Keeper> keeper, const RRefId& id);

  const RRefId& id() const { return id_; }
  /// Said when its creation begins, which may be after others began to wait for it.
  void set_type(const RRefType& type);
  /// Throws kInvalidArgument if the object is of another type.
  void check_type(const RRefType& type) const;
  std::string type_name() const;

  void fill(void* value, void (*destroy)(void*));
  void fail(std::exception_ptr error);
  bool is_settled() const { return settled_.ready(); }
  /// Settled with the object, whether it was created or failed to be.
  const Future<void>& settled() const { return settled_; }
  /// Throws the error of a failed creation. Requires settled().
  void* value() const;

  /// A turn of a serialized object: nothing if it is taken at once, else a future of it.
  std::optional<Future<void>> take_turn();
  void end_turn();

 private:
  ~RRefObject() override;

  const std::weak_ptr<rref::Keeper> keeper_;
  const RRefId id_;
  mutable std::mutex mutex_;
  std::optional<RRefType> type_;
  bool busy_ = false;
  std::deque<Promise<void>> turns_;
  void* value_ = nullptr;
  void (*destroy_)(void*) = nullptr;
  Promise<void> promise_;
  const Future<void> settled_;
};

/// This worker's hold on an object, its own or another's; shared by all copies of an RRef.
class RRefHandle final : public RefCounted {
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
  /// Throws what its creation failed with, if this worker asked for it and it has.
  void check_created() const;

 private:
  ~RRefHandle() override;

  const std::weak_ptr<rref::Keeper> keeper_;
  const WorkerInfo owner_;
  const RRefId id_;
  const Ref<RRefObject> object_;
  std::optional<Future<void>> creation_;  // the call that makes it, on the worker that asked
};

/// What creation calls carry.
struct RRefOrder {
  RRefId id;
  uint64_t epoch = 0;
};

/// An object of this worker's own, still to be filled.
Ref<RRefHandle> make_local_rref(Agent& agent, const RRefType& type);
/// A reference to an object on `to`, whose creation is still to be asked for.
std::pair<Ref<RRefHandle>, RRefOrder> make_remote_rref(rpc::AgentCore& agent,
                                                       const Destination& to);

void encode_rref(Encoder& out, const Ref<RRefHandle>& handle);
Ref<RRefHandle> decode_rref(Decoder& in);

/// The object a call is for, on its owner: there when the function starts.
Ref<RRefObject> decode_rref_target(Decoder& in, const RRefType& type);
/// The object a call is to make, on its owner.
Ref<RRefObject> decode_rref_order(Decoder& in, const RRefType& type);

void start_rref_call(const RRefHandle& handle, OutgoingCall& call, const FunctionEntry& function,
                     std::optional<Timeout> timeout, bool caller_waits, const Encoder& arguments);

/// What a failed call through a reference means for it. Nothing: whether its owner is gone is being
/// found out, and `future` is settled when it is known.
std::optional<Error> translate_rref_error(const RRefHandle& handle, const Error& error,
                                          Ref<FutureCore> future);

/// A call through a reference.
template <typename R>
class RRefCall final : public TypedCall<R> {
 public:
  explicit RRefCall(Ref<RRefHandle> handle) : handle_(std::move(handle)) {}
  std::optional<Error> translate(const Error& error) override {
    if (error.code() == ErrorCode::kOutcomeUnknown) this->settle_later();
    return translate_rref_error(*handle_, error, Ref<FutureCore>::share(this));
  }

 private:
  const Ref<RRefHandle> handle_;
};

}  // namespace weft::detail

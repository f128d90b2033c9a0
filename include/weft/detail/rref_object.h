// An object that remote references refer to, on its owner.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include "weft/detail/mutex.h"
#include "weft/detail/ref_counted.h"
#include "weft/detail/rref_id.h"
#include "weft/detail/turns.h"
#include "weft/export.h"
#include "weft/future.h"

namespace weft::rref {
class Keeper;
}

namespace weft::detail {

/// The properties of an object's type that its owner needs.
struct RRefType {
  const std::type_info* info;
  bool serialized;
};

/// An object that others may refer to, on its owner: awaited, then there or failed. Thread-safe.
class WEFT_API RRefObject final : public RefCounted {
 public:
  RRefObject(std::weak_ptr<rref::Keeper> keeper, const RRefId& id);

  const RRefId& id() const { return id_; }
  /// The first caller, its creation or a call that waits for the object, decides the type. Throws
  /// kInvalidArgument if that was another type.
  void expect_type(const RRefType& type);
  std::string type_name() const;

  void fill(std::shared_ptr<void> value);
  void fail(std::exception_ptr error);
  bool is_settled() const { return settled_.ready(); }
  /// Settled with the object, whether it was created or failed to be.
  const Future<void>& settled() const { return settled_; }
  /// Throws the error of a failed creation. Requires settled().
  void* value() const;

  /// Used if the object is serialized.
  Turns& turns() { return turns_; }

 private:
  ~RRefObject() override;

  const std::weak_ptr<rref::Keeper> keeper_;
  const RRefId id_;
  mutable Mutex mutex_;
  std::optional<RRefType> type_ WEFT_GUARDED_BY(mutex_);
  Turns turns_;
  std::shared_ptr<void> value_;  // written once, before settled_ is ready, and read only then
  Promise<void> promise_;
  const Future<void> settled_;
};

/// One call's use of an object. The call's turn, if the object is serialized, ends with the use.
class RRefUse {
 public:
  explicit RRefUse(Ref<RRefObject> object) : object_(std::move(object)) {}
  RRefUse(RRefUse&&) = default;
  ~RRefUse() {
    if (object_) end_turn();
  }

  RRefObject& object() const { return *object_; }
  /// Settled when the turn comes; nothing if the turn has come already.
  std::optional<Future<void>> take_turn() {
    Turns::Turn turn = object_->turns().take();
    turn_ = turn.number;
    return std::move(turn.comes);
  }
  void end_turn() {
    if (turn_) object_->turns().end(*std::exchange(turn_, std::nullopt));
  }

 private:
  Ref<RRefObject> object_;
  std::optional<uint64_t> turn_;
};

}  // namespace weft::detail

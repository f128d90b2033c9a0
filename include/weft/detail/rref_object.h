// An object that remote references refer to, on its owner.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <typeinfo>

#include "weft/detail/ref_counted.h"
#include "weft/detail/rref_id.h"
#include "weft/detail/turns.h"
#include "weft/future.h"

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

  /// Of a serialized object.
  Turns& turns() { return turns_; }

 private:
  ~RRefObject() override;

  const std::weak_ptr<rref::Keeper> keeper_;
  const RRefId id_;
  mutable std::mutex mutex_;
  std::optional<RRefType> type_;
  Turns turns_;
  void* value_ = nullptr;
  void (*destroy_)(void*) = nullptr;
  Promise<void> promise_;
  const Future<void> settled_;
};

}  // namespace weft::detail

// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/rref_object.h"

#include <fmt/format.h>

#include "base/demangle.h"
#include "rref/keeper.h"

namespace weft::detail {

RRefObject::RRefObject(std::weak_ptr<rref::Keeper> keeper, const RRefId& id)
    : keeper_(std::move(keeper)), id_(id), settled_(promise_.future()) {}

RRefObject::~RRefObject() {
  if (auto keeper = keeper_.lock()) keeper->on_object_gone(id_, this);
}

void RRefObject::expect_type(const RRefType& type) {
  const base::MutexLock lock(mutex_);
  if (!type_) type_ = type;
  if (*type_->info == *type.info) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a reference to {} is used as one to {}", base::demangle(*type_->info),
                          base::demangle(*type.info)));
}

std::string RRefObject::type_name() const {
  const base::MutexLock lock(mutex_);
  return type_ ? base::demangle(*type_->info) : "(not created yet)";
}

void RRefObject::fill(std::shared_ptr<void> value) {
  value_ = std::move(value);
  promise_.set_value();
}

void RRefObject::fail(std::exception_ptr error) { promise_.set_exception(std::move(error)); }

void* RRefObject::value() const {
  auto& state = FutureAccess::state(settled_);
  if (state.failed()) state.rethrow();
  return value_.get();
}

}  // namespace weft::detail

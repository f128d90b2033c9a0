// SPDX-License-Identifier: BSD-3-Clause
#include "weft/detail/rref_handle.h"

#include <chrono>
#include <new>

#include <fmt/format.h>

#include "base/log.h"
#include "rref/keeper.h"

namespace weft::detail {

RRefHandle::~RRefHandle() {
  if (object_) return;
  try {
    if (auto keeper = keeper_.lock()) keeper->on_handle_gone(id_, creation_);
  } catch (const std::bad_alloc&) {
    base::log(LogLevel::kError, "rref", "no memory to tell {} of a reference that was dropped",
              owner_.name);  // the object lives as long as this worker
  }
}

std::shared_ptr<rref::Keeper> RRefHandle::keeper() const {
  if (auto keeper = keeper_.lock()) return keeper;
  throw Error(ErrorCode::kShuttingDown,
              fmt::format("a reference to an object on {} was used after shutdown", owner_.name));
}

std::shared_ptr<rpc::AgentCore> RRefHandle::agent() const { return keeper()->agent(); }

void RRefHandle::set_creation(Future<void> creation) {
  creation_ = std::move(creation);
  if (!object_) keeper()->sessions().on_creation_asked(id_, *creation_);
}

bool RRefHandle::confirmed() const {
  if (object_) return true;
  if (creation_) {
    return creation_->ready() &&
           (!creation_->error() || creation_->error()->code() == ErrorCode::kRemoteError);
  }
  return keeper()->sessions().is_held(id_);
}

void RRefHandle::check_created_soon() const {
  constexpr auto kSoon = std::chrono::milliseconds(100);
  if (creation_ && creation_->wait_for(kSoon)) check_created();
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

}  // namespace weft::detail

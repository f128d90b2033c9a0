// A member as this worker calls it: the connections to it. Most processes have one; a process whose
// threads call at the same time has several, so that its threads share neither a lock nor a stream.
//
// All calls of a thread go over the same connection, so they arrive in the order in which the
// thread made them. Weft's own messages and calls that functions and continuations make go over the
// first connection. If a further connection cannot be made although the first stands, its threads
// use the first from then on. A further connection that is not used for a minute is closed, if
// another one stands, whose heartbeat tells whether the member lives; it is made again for the next
// call.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "rpc/calling/calling_link.h"
#include "rpc/calling/shared_window.h"
#include "rpc/runtime.h"
#include "weft/error.h"

namespace weft::rpc {

class Peer final {
 public:
  Peer(std::shared_ptr<Runtime> runtime, const Member& member);

  const WorkerInfo& info() const { return first_->info(); }
  CallingLink& first() const { return *first_; }
  /// The connection for calls of the user's that this thread makes. May wait until it is made, not
  /// beyond the call's deadline.
  CallingLink& of_this_thread(CallLimits& limits);

  /// "connected" if one of them is; else that of the first.
  const char* state_name() const;
  std::string transport() const { return first_->transport(); }
  const std::string& address() const { return first_->address(); }
  /// Those that there are.
  std::vector<detail::Ref<CallingLink>> all() const;
  void close(const Error& why);

 private:
  CallingLink& further(size_t index, CallLimits& limits);
  CallingLink& make_further(size_t index);
  /// For a further connection: four times as long as the first took, or this.
  static constexpr auto kTimeToConnect = std::chrono::milliseconds(100);
  std::chrono::milliseconds time_to_connect() const;

  const std::shared_ptr<Runtime> runtime_;
  const Member member_;
  const std::shared_ptr<SharedWindow> window_;
  const detail::Ref<CallingLink> first_;
  // By number; owned by made_ or the first itself. Number 0 is unused.
  std::array<std::atomic<CallingLink*>, Runtime::kMostConnections> further_{};

  mutable base::Mutex mutex_;
  std::vector<detail::Ref<CallingLink>> made_ WEFT_GUARDED_BY(mutex_);  // besides the first
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc

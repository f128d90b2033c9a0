// The one verdict of this worker on which members are gone; all layers act on it.
//
// Peers report the signs they see. A layer whose call to a member failed asks when_known(): the
// member is probed, whatever the number of those who ask, until it answers or is known to be gone.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "rpc/group/liveness_table.h"
#include "rpc/io/alarm.h"
#include "weft/error.h"
#include "weft/future.h"

namespace weft::rpc {

struct Runtime;

class Liveness {
 public:
  explicit Liveness(Runtime& runtime);

  /// Any thread; calls nobody.
  void on_sign(int rank, SignOfLife sign, base::Time began, const std::string& why);

  /// That stand.
  size_t connections_to(int rank) const;
  /// kPeerLost with the reason, if the member is known to be gone.
  std::optional<Error> why_gone(int rank) const;

  /// True for errors of the connection (kUnavailable, kOutcomeUnknown, kPeerLost,
  /// kUnauthenticated): a call that failed with one does not tell whether the member still lives.
  static bool leaves_open_whether_alive(const Error& error);

  /// Calls `then` with nothing when the member has been heard of, with kPeerLost when it is known
  /// to be gone, with kShuttingDown when this worker ends, with kLimitExceeded if there is no
  /// memory to ask the member. Comes on a thread that may block.
  using Then = std::function<void(const std::optional<Error>& gone)>;
  void when_known(int rank, Then then);

  /// Calls `on_gone` for every member from the moment it is known to be gone. Comes on a thread
  /// that may block.
  using OnGone = std::function<void(int rank, const Error& why)>;
  void subscribe(OnGone on_gone);

  /// Answers all that wait in when_known() with kShuttingDown, on this thread.
  void stop();

 private:
  template <typename T>
  class Messenger;
  struct TellSubscribers;
  struct TellAsking;

  void probe(int rank);
  void on_probed(int rank, const Future<void>& answer);
  void probe_again();
  void answer(int rank, const std::optional<Error>& gone);
  Error gone_error(int rank, const std::string& why) const;

  Runtime& runtime_;
  const Error no_memory_{ErrorCode::kLimitExceeded, "there is no memory to ask a member"};
  mutable base::Mutex mutex_;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  LivenessTable table_ WEFT_GUARDED_BY(mutex_);
  std::map<int, std::vector<Then>> asking_ WEFT_GUARDED_BY(mutex_);  // ranks that are being probed
  std::set<int> to_probe_again_ WEFT_GUARDED_BY(mutex_);
  std::shared_ptr<Alarm> alarm_ WEFT_GUARDED_BY(mutex_);
  std::vector<OnGone> subscribers_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc

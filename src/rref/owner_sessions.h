// This worker's holds on objects of others, and its conversations with their owners: the shell
// around Holdings.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "rpc/io/alarm.h"
#include "rpc/runtime.h"
#include "rref/holdings.h"
#include "weft/error.h"
#include "weft/future.h"

namespace weft::rref {

/// Thread-safe. Futures are settled, and so waiting functions resumed, without its lock.
class OwnerSessions : public std::enable_shared_from_this<OwnerSessions> {
 public:
  explicit OwnerSessions(std::shared_ptr<rpc::Runtime> runtime);

  /// A reference to an object that is to be created on the worker of this rank; counts as a hold.
  RRefId create(int owner);
  /// Remembers the call that creates the object.
  void on_creation_asked(const RRefId& id, const Future<void>& creation);
  /// From now on the outcome of the creation is acted on; until then nobody listens for it.
  void watch_creation(const RRefId& id, const Future<void>& creation);

  /// It is not known that the object was made: the owner is told not to make it.
  void on_creation_failed(const RRefId& id);

  struct Arrival {
    Holdings::State state;
    std::optional<Future<void>>
        confirmed;  // once the owner registers this worker; nothing: no wait
  };
  /// A reference came with a message; counts as a hold. Throws kShuttingDown. If it throws, there
  /// is no hold.
  Arrival arrive(const RRefId& id, bool may_precede_creation);
  /// Sends the queued messages as soon as the I/O crew can: somebody waits for an answer.
  void talk_soon();
  /// Tells `sender` that it need not hold the object any more that its reply referred to.
  void accept(Worker sender, const RRefId& id);
  /// Ends one hold. `creation`: the call that was to make the object, if this worker made it.
  void drop(const RRefId& id, const std::optional<Future<void>>& creation);
  bool is_held(const RRefId& id) const;
  /// The owner is gone: everything held of it is lost.
  void on_owner_lost(Worker owner);

  /// Fails what waits, and says nothing more.
  void stop();

  bool is_idle() const;
  uint64_t messages() const;  // that changed something
  size_t references() const;
  size_t references(Worker owner) const;
  size_t unconfirmed() const;

 private:
  using Promises = std::vector<Promise<void>>;
  // Promises to be settled once the lock is released.
  struct Aftermath {
    std::vector<Promises> confirmed;
    std::vector<std::pair<RRefId, Promises>> lost;
  };

  void on_created(const RRefId& id, Holdings::CreationOutcome outcome);
  void absorb(Aftermath& aftermath) WEFT_REQUIRES(mutex_);
  Promises take_unconfirmed(const RRefId& id) WEFT_REQUIRES(mutex_);
  static void finish(Aftermath& aftermath);

  void talk_before_long();
  void talk(Holdings::Say what);
  void say_next(Worker owner);
  void send(Worker owner, const SessionMessage& message);
  void on_answer(Worker owner, uint64_t epoch, uint64_t sequence,
                 const Future<SessionReply>& answer);
  void on_silence(Worker owner, const Error& error);
  void repeat(Worker owner);
  void repeat_again(Worker owner);
  void repeat_later(Worker owner) noexcept;
  void set_alarm();
  void try_set_alarm() noexcept;
  void set_alarm_by(base::Time due);
  rpc::Alarm& alarm() WEFT_REQUIRES(mutex_);

  const std::shared_ptr<rpc::Runtime> runtime_;
  const base::Duration lease_;

  mutable base::Mutex mutex_;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  Holdings holdings_ WEFT_GUARDED_BY(mutex_);
  // Of the holdings', those that are not acted on yet: for lack of memory some may wait here.
  Holdings::Changes missed_changes_ WEFT_GUARDED_BY(mutex_);
  uint64_t messages_ WEFT_GUARDED_BY(mutex_) = 0;
  template <typename T>
  using ById = std::unordered_map<RRefId, T, detail::RRefIdHash>;
  ById<Promises> unconfirmed_ WEFT_GUARDED_BY(mutex_);
  ById<Future<void>> creations_ WEFT_GUARDED_BY(mutex_);  // asked for here
  std::shared_ptr<rpc::Alarm> alarm_ WEFT_GUARDED_BY(mutex_);

  std::atomic<bool> talking_soon_{false};
  std::atomic<bool> release_waits_{false};
};

}  // namespace weft::rref

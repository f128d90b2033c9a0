// The objects of this worker that references refer to, and who holds them: the shell around
// OwnerLedger and ReplyHolds.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "rpc/io/alarm.h"
#include "rpc/runtime.h"
#include "rref/owner_ledger.h"
#include "rref/reply_holds.h"
#include "weft/detail/rref_object.h"
#include "weft/rref_census.h"

namespace weft::rref {

using detail::Ref;
using detail::RRefObject;

class Keeper;

/// Thread-safe. Values are destroyed, futures settled and so waiting functions resumed, without its
/// lock.
class OwnedObjects : public std::enable_shared_from_this<OwnedObjects> {
 public:
  OwnedObjects(std::shared_ptr<rpc::Runtime> runtime, std::weak_ptr<Keeper> keeper);

  /// Makes an object of this worker's own, without a value. `may_be_awaited`: enters it into the
  /// table at once, because its id is sent in a call (remote() to oneself) before it has a value;
  /// else share() enters it.
  Ref<RRefObject> make(bool may_be_awaited);
  void share(RRefObject& object);
  /// Throws kRRefLost if there is no such object.
  Ref<RRefObject> find(const RRefId& id);
  /// Like find(), for a call of `caller`'s. A call of the object's creator may arrive before the
  /// creation, over another connection or ahead of bulk: then the object is awaited.
  Ref<RRefObject> find_for_call(const RRefId& id, const WorkerInfo& caller);
  /// Like find(), for an object whose creation may not have arrived: it is then awaited.
  Ref<RRefObject> find_or_await(const RRefId& id);
  /// `from` asks this worker to make the object. Throws if that comes too late, or if `from` is not
  /// the creator that the id names.
  Ref<RRefObject> begin_creation(const RRefId& id, const WorkerInfo& from,
                                 const detail::RRefType& type);
  /// The call by which this worker was to make the object itself has failed. If it had not begun to
  /// make it, the object will not come.
  void on_creation_failed(const RRefId& id);
  void on_object_gone(const RRefId& id, const RRefObject* object);

  /// Applies a message of a session. Throws kBadMessage for steps that `from` has no right to.
  SessionReply on_message(const WorkerInfo& from, const SessionMessage& message);
  /// A reply to `receiver` refers to these: they are held for it until it has registered.
  void keep_for_receiver(const WorkerInfo& receiver,
                         const std::vector<Ref<detail::RefCounted>>& handles);

  /// Lets go of everything; nothing is held for others any more.
  void stop();

  std::vector<RRefCensus::Owned> census();
  size_t objects() const;
  size_t holders() const;
  uint64_t messages() const;  // that changed something

 private:
  // Objects to be destroyed or settled once the lock is released.
  struct Aftermath {
    std::vector<Ref<detail::RefCounted>> dropped;
    std::vector<Ref<RRefObject>> never_created;
  };

  Ref<RRefObject> object_for(const RRefId& id) WEFT_REQUIRES(mutex_);
  void enter(const RRefId& id, RRefObject* object) WEFT_REQUIRES(mutex_);
  Ref<RRefObject> find_existing(const RRefId& id) WEFT_REQUIRES(mutex_);
  [[noreturn]] void lose(const RRefId& id) const;
  void check_not_stopped() const WEFT_REQUIRES(mutex_);
  void check(const SessionMessage& message, const WorkerInfo& from) const;
  void absorb(Aftermath& aftermath) noexcept WEFT_REQUIRES(mutex_);
  void absorb_changes(Aftermath& aftermath) WEFT_REQUIRES(mutex_);
  static void finish(Aftermath& aftermath);
  void on_time();
  base::Time next() const WEFT_REQUIRES(mutex_);
  bool was_held_up(base::Time now) WEFT_REQUIRES(mutex_);
  void expire(base::Time now, Aftermath& aftermath) WEFT_REQUIRES(mutex_);
  void set_alarm(base::Time now) WEFT_REQUIRES(mutex_);
  /// To be called before a lease begins: the alarm rings when it ends, or earlier. on_time() finds
  /// out what is due.
  void set_alarm_for_lease(base::Time now) WEFT_REQUIRES(mutex_);
  /// After memory lacked: what is left to do is done before long.
  void look_again_soon() noexcept WEFT_REQUIRES(mutex_);
  rpc::Alarm& alarm() WEFT_REQUIRES(mutex_);

  const std::shared_ptr<rpc::Runtime> runtime_;
  const std::weak_ptr<Keeper> keeper_;  // objects tell it of their end
  const base::Duration lease_;

  mutable base::Mutex mutex_;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  OwnerLedger ledger_ WEFT_GUARDED_BY(mutex_);
  // Of the ledger's, those that are not acted on yet: for lack of memory some may wait here.
  OwnerLedger::Changes missed_changes_ WEFT_GUARDED_BY(mutex_);
  ReplyHolds reply_holds_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_number_ WEFT_GUARDED_BY(mutex_) = 1;
  uint64_t messages_ WEFT_GUARDED_BY(mutex_) = 0;
  using Objects = std::unordered_map<RRefId, RRefObject*, detail::RRefIdHash>;
  using Holds = std::unordered_map<RRefId, Ref<RRefObject>, detail::RRefIdHash>;
  Objects objects_ WEFT_GUARDED_BY(mutex_);  // that exist here
  // Of this worker's own: those whose creation has not begun.
  std::unordered_set<RRefId, detail::RRefIdHash> to_be_made_ WEFT_GUARDED_BY(mutex_);
  Holds held_ WEFT_GUARDED_BY(mutex_);  // by others
  std::shared_ptr<rpc::Alarm> alarm_ WEFT_GUARDED_BY(mutex_);
  base::Time rings_at_ WEFT_GUARDED_BY(mutex_) = base::Time::max();  // at the latest
  // Since this worker was held up: until when it reads what came meanwhile.
  std::optional<base::Time> read_until_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rref

// Counts the holders of this worker's objects. A deterministic core: messages and times go in,
// answers and changes come out. docs/rref_protocol.md has the protocol and its invariants.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "rref/serial_set.h"
#include "rref/session_message.h"

namespace weft::rref {

/// Parts of the protocol that can be left out, to show that each is needed.
struct LedgerFaults {
  bool no_tombstones = false;
  bool no_leases = false;
  bool no_leases_of_awaited = false;
};

/// Where memory lacks, methods throw std::bad_alloc. Changes that have happened until then are in
/// Changes; when the same message comes again, apply() goes on at the first step that is not
/// applied.
class OwnerLedger {
 public:
  explicit OwnerLedger(base::Duration lease, LedgerFaults faults = {})
      : lease_(lease), faults_(faults) {}

  /// The work that an event leaves to the shell.
  struct Changes {
    std::vector<RRefId> unheld;         // no other worker holds them any more
    std::vector<RRefId> never_created;  // waited for, and will not come
    std::vector<RRefId> registered;     // newly; none if a repeated message is answered again
    std::vector<std::pair<Worker, RRefId>> accepted;

    bool empty() const {
      return unheld.empty() && never_created.empty() && registered.empty() && accepted.empty();
    }
  };

  /// The object can be reached from this worker's own code.
  void begin_local(const RRefId& id) { objects_[id].local = true; }
  void end_local(const RRefId& id);
  /// Like begin_local(), for an object whose creation may not have arrived: it is then awaited.
  /// False: the creator has given the object up, so it will not come.
  bool await_local(const RRefId& id, base::Time now);

  /// A creation arrived from its creator. False: it comes too late or twice, and must not run.
  bool create(const RRefId& id, base::Time now, Changes& changes);

  SessionReply apply(Worker holder, const SessionMessage& message, base::Time now,
                     Changes& changes);

  /// No further creation is let in: those that are awaited will not come.
  void give_up_all_awaited(Changes& changes);

  /// Ends the sessions whose lease ran out. To be called at next() or later.
  void expire(base::Time now, Changes& changes);
  base::Time next() const;

  bool exists(const RRefId& id) const { return objects_.contains(id); }
  bool is_held(const RRefId& id) const;
  std::vector<Worker> holders(const RRefId& id) const;
  size_t objects() const { return objects_.size(); }
  size_t awaited() const { return awaited_.size(); }
  size_t holdings() const;

 private:
  struct Object {
    bool local = false;
    bool failed = false;  // its creation did not come while it was awaited
    std::set<Worker> holders;
  };
  // One per worker that ever sent this owner a message. A session that is over stays, so that late
  // messages of it are recognized.
  struct Session {
    uint64_t epoch = 0;
    uint64_t applied = 0;
    bool over = false;
    base::Time lease_until{};
    SessionReply last_reply;
    // Of the message after that one, if memory lacked in the midst of it.
    size_t steps_done = 0;
    SessionReply reply_so_far;
    std::set<RRefId> held;
    SerialSet created;  // creations that arrived, or that were given up before they did
  };

  Session* open(Worker holder, uint64_t epoch, base::Time now, Changes& changes);
  bool register_holder(Worker holder, Session& session, const Step& step, base::Time now);
  void release(Worker holder, Session& session, const RRefId& id, Changes& changes);
  void drop_holder(Worker holder, const RRefId& id, Changes& changes);
  void end(Worker holder, Session& session, Changes& changes);
  Object* find_or_await(const RRefId& id, bool may_precede_creation, base::Time now);
  void erase(const RRefId& id);
  /// How an object's creator stands to the epoch in which it was to create it.
  enum class Creator { kNotHeardYet, kInSession, kGivenUp };
  Creator creator(const RRefId& id) const;
  void give_up_awaited(Worker creator, uint64_t before_epoch, Changes& changes);
  void make_room_for_end(const Session& session, Changes& changes) const;
  void make_room_for_awaited(Changes& changes) const;
  void add_holder(Worker holder, Session& session, const RRefId& id, Object& object);
  void take_back(const RRefId& id);

  base::Duration lease_;
  LedgerFaults faults_;
  std::unordered_map<RRefId, Object, detail::RRefIdHash> objects_;
  std::unordered_map<Worker, Session> sessions_;
  // Objects that were registered before their creation arrived. Until the creator has said
  // something in the epoch of the id there is no lease of the creator's, so each has its own.
  std::map<RRefId, base::Time> awaited_;
};

}  // namespace weft::rref

// The references this worker holds to objects of others, and its sessions with their owners. A
// deterministic core: answers and times go in, messages to send come out.
// docs/rref_protocol.md has the protocol and its invariants.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "rref/session_message.h"

namespace weft::rref {

/// Where memory lacks, methods throw std::bad_alloc and nothing has changed.
class Holdings {
 public:
  /// Of one message; what is left goes with the next.
  static constexpr size_t kMostSteps = 65'536;

  Holdings(Worker self, base::Duration lease) : self_(self), lease_(lease) {}

  /// The outcome of a creation that was sent.
  enum class CreationOutcome {
    kAnswered,  // it arrived, whether or not the function failed
    kUnknown,   // it may have arrived, or may yet
  };
  enum class State {
    kCreating,
    kRegistering,
    kHeld,
    kLost,  // the owner is gone or has dropped this worker
  };
  /// References whose state was decided by an event.
  struct Changes {
    std::vector<RRefId> held;
    std::vector<RRefId> refused;  // the object was gone before the registration came
    std::vector<RRefId> lost;

    bool empty() const { return held.empty() && refused.empty() && lost.empty(); }
  };

  /// A reference to an object whose creation is to be sent to its owner; counts as one hold.
  RRefId create(Worker owner, base::Time now);
  void on_created(const RRefId& id, CreationOutcome outcome, Changes& changes);

  /// A reference came with a message; counts as one hold. kHeld: it may be used at once.
  State arrive(const RRefId& id, bool may_precede_creation, base::Time now);
  /// Needs no memory.
  void drop(const RRefId& id);

  /// Tells `sender`, whose reply brought a reference, that it need not hold the object any more.
  void accept(Worker sender, const RRefId& id, base::Time now);

  std::optional<State> state(const RRefId& id) const;
  /// Whether only the outcome of its creation is waited for.
  bool is_dropped_creation(const RRefId& id) const;
  /// Until when the owner surely counts this worker among the holders.
  base::Time sure_until(const RRefId& id) const;

  // The conversation with an owner: one message at a time.

  /// The next message, if there is something to say and none is unanswered; or the unanswered one,
  /// if it is to be repeated now: when repeat_later() said, or half a lease after it was sent.
  std::optional<SessionMessage> next_message(Worker owner, base::Time now);
  /// The unanswered one once more.
  std::optional<SessionMessage> repeat(Worker owner, base::Time now);
  /// From `at` on, next_message() gives the unanswered message once more.
  void repeat_later(Worker owner, base::Time at);
  /// Whether the unanswered message was sent more than once.
  bool was_repeated(Worker owner) const;
  void on_reply(Worker owner, uint64_t epoch, uint64_t sequence, const SessionReply& reply,
                base::Time now, Changes& changes);
  void on_owner_lost(Worker owner, Changes& changes);

  enum class Say {
    kEverything,
    kWhatSomebodyWaitsFor,  // registrations and renewals; releases and acceptances may wait
  };
  /// The owners to which a message can be sent now that has something of `what`.
  std::vector<Worker> owners_to_tell(base::Time now, Say what = Say::kEverything) const;
  /// Whether something could be said that has not been.
  bool has_unsaid() const;
  /// Whether anything but a renewal is unsaid or unanswered.
  bool has_unfinished() const;
  /// When the next lease is to be renewed, or a message to be repeated.
  base::Time next() const;

  size_t references() const;
  size_t references(Worker owner) const;

 private:
  struct Entry {
    State state = State::kRegistering;
    size_t holds = 0;
    bool creation_open = false;  // sent, no outcome yet
    bool early = false;
    bool queued = false;  // a registration waits to be sent or answered
  };
  struct Session {
    uint64_t epoch = 1;
    uint64_t sequence = 0;
    uint64_t next_serial = 1;
    std::optional<SessionMessage> unanswered;
    base::Time asked{};                        // when the unanswered message was first sent
    bool repeated = false;                     // whether that message was sent more than once
    base::Time repeat_at = base::Time::max();  // when that message is to be sent once more
    base::Time spoke{};       // when a message, or the first creation, was sent last
    base::Time sure_until{};  // when the lease runs out that the last answer proves
    std::vector<Step> queue;  // with room for a release of each entry
    bool urgent = false;      // there is a registration in it
    bool owner_lost = false;  // and nothing was begun with it since
    std::map<RRefId, Entry> entries;
  };

  Session& session(Worker owner, base::Time now);
  Session* find(Worker owner);
  const Session* find(Worker owner) const { return const_cast<Holdings*>(this)->find(owner); }
  static void make_room(Session& session, size_t more);
  static void give_back_room(Session& session);
  base::Time repeat_at_last(base::Time now) const;
  bool renewal_due(const Session& session, base::Time now) const;
  base::Time renew_at(const Session& session) const;
  void forget_if_idle(Session& session, std::map<RRefId, Entry>::iterator entry);
  void begin_epoch(Session& session, Changes& changes);

  Worker self_;
  base::Duration lease_;
  std::unordered_map<Worker, Session> sessions_;
};

}  // namespace weft::rref

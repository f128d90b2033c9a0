// Everything an agent has of remote references: its objects, its holds on those of others, and the
// conversations that keep both right. The shell around OwnerLedger and Holdings.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rpc/agent_core.h"
#include "rpc/agent_extension.h"
#include "rpc/io/alarm.h"
#include "rref/holdings.h"
#include "rref/owner_ledger.h"
#include "rref/reply_holds.h"
#include "weft/detail/rref_core.h"
#include "weft/rref_census.h"

namespace weft::rref {

using detail::Ref;
using detail::RRefHandle;
using detail::RRefObject;

class Keeper final : public rpc::AgentExtension, public std::enable_shared_from_this<Keeper> {
 public:
  explicit Keeper(rpc::AgentCore& agent);
  static Keeper& of(rpc::AgentCore& agent);

  /// Throws kShuttingDown if the agent is gone.
  std::shared_ptr<rpc::AgentCore> agent() const;

  // Handles.
  Ref<RRefHandle> make_local(const detail::RRefType& type);
  Ref<RRefHandle> make_remote(int owner_rank);
  void encode(Encoder& out, const Ref<RRefHandle>& handle);
  Ref<RRefHandle> decode(Decoder& in, detail::Arrival& arrival, const detail::RRefType& type);
  void on_creation_asked(const RRefId& id, const Future<void>& creation);
  void on_handle_gone(const RRefId& id, const std::optional<Future<void>>& creation);
  bool is_held(const RRefId& id);

  // Objects.
  Ref<RRefObject> find(const RRefId& id);
  Ref<RRefObject> find_or_await(const RRefId& id);
  Ref<RRefObject> begin_creation(const RRefId& id, const WorkerInfo& from,
                                 const detail::RRefType& type);
  void on_object_gone(const RRefId& id, const RRefObject* object);

  // Conversations.
  SessionReply on_message(const WorkerInfo& from, const SessionMessage& message);
  const std::shared_ptr<rpc::Runtime>& runtime() const { return runtime_; }

  RRefCensus census();

  // rpc::AgentExtension:
  rpc::Idleness idleness() override;
  std::string unfinished() override;
  void on_stopping() override;
  void keep_for_receiver(const WorkerInfo& receiver,
                         const std::vector<Ref<detail::RefCounted>>& objects) override;
  void describe(DebugInfo& info) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  // What must be destroyed, settled or sent once the lock is released.
  struct Aftermath {
    std::vector<Ref<detail::RefCounted>> dropped;
    std::vector<Ref<RRefObject>> never_created;
    std::vector<Promise<void>> confirmed;
    std::vector<std::pair<Promise<void>, std::string>> lost;
  };

  Worker self() const { return runtime_->self().incarnation; }
  Worker worker(int rank) const;
  int rank(Worker worker) const;
  Ref<RRefObject> object_for(const RRefId& id);
  Future<void> confirmation(const RRefId& id);
  void watch_creation(const RRefId& id, const Future<void>& creation);
  void on_created(const RRefId& id, const Future<void>& creation);
  void absorb(OwnerLedger::Changes& changes, Aftermath& aftermath);
  void absorb(Holdings::Changes& changes, Aftermath& aftermath);
  static void finish(Aftermath& aftermath);
  void check(const SessionMessage& message, const WorkerInfo& from) const;
  void report_leaks();

  void accept(Worker sender, const RRefId& id);
  void check_not_stopped() const;
  Ref<RRefObject> find_existing(const RRefId& id);
  [[noreturn]] void lose(const RRefId& id) const;

  void talk_soon();
  void talk_before_long();
  void talk(Holdings::Say what);
  void send(Worker owner, SessionMessage message);
  void on_answer(Worker owner, uint64_t epoch, uint64_t sequence,
                 const Future<SessionReply>& answer);
  void on_silence(Worker owner, const Error& error);
  void repeat(Worker owner);
  void on_owner_lost(Worker owner);
  void on_time();
  rpc::Alarm& alarm();
  void set_timer();
  /// Sets it unless it is due by then anyway; it finds out itself what is due.
  void set_timer_by(base::Time due);

  const std::weak_ptr<rpc::AgentCore> agent_;
  const std::shared_ptr<rpc::Runtime> runtime_;
  const base::Duration lease_;

  std::mutex mutex_;
  bool stopped_ = false;
  OwnerLedger ledger_;
  Holdings holdings_;
  uint64_t next_local_ = 1;
  uint64_t messages_ = 0;  // of sessions, said and heard
  std::unordered_map<RRefId, RRefObject*, detail::RRefIdHash> objects_;   // that exist here
  std::unordered_map<RRefId, Ref<RRefObject>, detail::RRefIdHash> held_;  // by others
  std::unordered_map<RRefId, std::vector<Promise<void>>, detail::RRefIdHash> unconfirmed_;
  std::unordered_map<RRefId, Future<void>, detail::RRefIdHash> creations_;  // asked for here
  ReplyHolds reply_holds_;
  std::shared_ptr<rpc::Alarm> alarm_;
  std::atomic<bool> talking_soon_{false};
  std::atomic<bool> release_waits_{false};
};

}  // namespace weft::rref

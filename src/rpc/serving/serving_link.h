// The serving end of a connection: calls come in, replies go out.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "rpc/io/link.h"
#include "rpc/serving/call_index.h"
#include "rpc/serving/untaken_replies.h"
#include "weft/debug_info.h"
#include "weft/detail/function_entry.h"
#include "weft/detail/ref_counted.h"
#include "weft/worker_info.h"
#include "wire/call_prelude.h"

namespace weft::rpc {

class AgentCore;
class Desk;
class IncomingCall;
class Server;

/// The meaning of a function number of this connection.
struct ResolvedFunction {
  const detail::FunctionEntry* entry = nullptr;  // null: the function cannot be called
  ErrorCode error{};                             // then why not
  std::string why;
};

class ServingLink final : public detail::RefCounted {
 public:
  /// As long as the link exists, so do the server and its agent: a function may outlive the agent's
  /// other owners, since a promise kept by the user answers any time.
  ServingLink(Server& server, Desk& desk, detail::Ref<Link> link, WorkerInfo caller,
              UntakenReplies& untaken);

  Link& link() { return *link_; }
  const WorkerInfo& caller() const { return caller_; }

  ResolvedFunction& function_slot(uint32_t number);
  /// The function that the caller means; names are learnt from the first call that uses them.
  const ResolvedFunction& resolve(const wire::CallPrelude& prelude, uint8_t flags);

  /// Queues a reply; the leader sends those of one batch together, other threads send at once.
  void send_reply(const wire::FrameHeader& header, std::span<const std::byte> note, Encoder& value,
                  Link::Lane lane);
  void flush();

  // Calls being served.
  void add(IncomingCall& call);
  void remove(IncomingCall& call);
  void cancel(uint64_t call_id);
  void cancel_all();
  /// Whether the call was cancelled before it came; forgets that cancel. Leader only.
  bool take_early_cancel(uint64_t call_id);

  /// Whether calls have come that are not done with.
  bool has_calls() const { return call_count_.load(std::memory_order_relaxed) > 0; }
  /// Those of them that need a thread: not Weft's own, some of which wait for hours, and not those
  /// whose function has returned a future.
  size_t working_calls() const { return working_count_.load(std::memory_order_relaxed); }
  void needs_no_thread(IncomingCall& call);
  void describe_calls(std::vector<CallInFlight>& calls, bool reserved_too, base::Time now);

  /// A call of the backlog that is not to begin while the link is paused waits here, and returns to
  /// the backlog afterwards. False: the link is not paused.
  bool hold_until_replies_are_taken(IncomingCall& call);

  // Calls whose arguments are decoded later, one after the other: the line keeps the order in which
  // the calls came.
  bool has_line() const { return line_length_.load(std::memory_order_acquire) > 0; }
  /// True: the call is the first, to be decoded now. A link that was closed keeps none.
  bool stand_in_line(detail::Ref<IncomingCall> call);
  /// The first has been decoded. Returns the next, to be decoded now; null if there is none.
  detail::Ref<IncomingCall> next_in_line();

  /// Tells the poller what to wait for: readable unless the caller leaves its replies untaken,
  /// writable while some are unsent. Any thread, after every flush, with what came of it.
  void update_interest(Link::State flushed = Link::State::kFine);
  /// Before the connection is closed.
  void stop_watching();
  /// Whether the link is not read, because its caller does not take its replies.
  bool paused() const { return paused_.load(std::memory_order_relaxed); }
  /// Leader, between two calls of a batch: false if the caller does not take its replies. Then the
  /// calls that have come are held until it does.
  bool takes_next_call();
  /// Whether calls are held. Their bytes are read and not decoded, so no more may be read.
  bool holds_calls() const { return holds_calls_.load(std::memory_order_relaxed); }
  /// Whether calls were held and can be served now; they count as served. Leader.
  bool take_held_calls() {
    return !paused() && holds_calls_.exchange(false, std::memory_order_relaxed);
  }

  uint64_t token = 0;
  bool lost = false;          // leader: gone from the server's table
  bool said_goodbye = false;  // leader: the caller sends no more
  base::Time last_call{};     // leader: when one came

 private:
  class LargeReply;
  void let_waiting_begin() WEFT_REQUIRES(interest_mutex_);

  Server& server_;
  const std::shared_ptr<AgentCore> keepalive_;  // until the server closes, a cycle
  Desk& desk_;
  detail::Ref<Link> link_;
  const WorkerInfo caller_;
  // By the caller's number; leader only. Callers number from 0: the few with higher numbers than
  // programs have functions do not get a table that long.
  std::vector<ResolvedFunction> functions_;
  std::map<uint32_t, ResolvedFunction> functions_of_high_numbers_;
  // Cancels of calls that are not here: they were answered, or their frames were overtaken. The
  // latest few; leader only.
  std::vector<uint64_t> early_cancels_;
  size_t next_early_cancel_ = 0;
  base::Mutex mutex_;
  CallIndex<IncomingCall> calls_ WEFT_GUARDED_BY(mutex_);
  std::atomic<size_t> call_count_{0};
  std::atomic<size_t> working_count_{0};  // changed under the mutex
  std::list<detail::Ref<IncomingCall>> line_ WEFT_GUARDED_BY(mutex_);
  std::atomic<size_t> line_length_{0};
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
  std::atomic<size_t> being_queued_{0};  // bytes of large replies
  base::Mutex interest_mutex_;
  UntakenReplies::Share unsent_ WEFT_GUARDED_BY(interest_mutex_);
  bool is_watched_ WEFT_GUARDED_BY(interest_mutex_) = true;
  // Calls that had a thread while the link was paused.
  std::list<detail::Ref<IncomingCall>> waiting_ WEFT_GUARDED_BY(interest_mutex_);
  std::atomic<bool> paused_{false};
  std::atomic<bool> holds_calls_{false};
  uint32_t interest_ WEFT_GUARDED_BY(interest_mutex_);
};

}  // namespace weft::rpc

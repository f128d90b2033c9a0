// The serving end of a connection: calls come in, replies go out.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "rpc/io/link.h"
#include "rpc/serving/call_index.h"
#include "weft/debug_info.h"
#include "weft/detail/function_entry.h"
#include "weft/detail/ref_counted.h"
#include "weft/worker_info.h"
#include "wire/call_prelude.h"

namespace weft::rpc {

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
  ServingLink(Server& server, detail::Ref<Link> link, WorkerInfo caller);

  Link& link() { return *link_; }
  const WorkerInfo& caller() const { return caller_; }

  ResolvedFunction& function_slot(uint32_t number);
  /// The function that the caller means; names are learnt from the first call that uses them.
  const ResolvedFunction& resolve(const wire::CallPrelude& prelude, uint8_t flags);

  /// Queues a reply; the leader sends those of one batch together, other threads send at once.
  void send_reply(const wire::FrameHeader& header, std::span<const std::byte> note,
                  const Encoder& value, Link::Lane lane);
  void flush();

  // Calls being served.
  void add(IncomingCall& call);
  void remove(IncomingCall& call);
  void cancel(uint64_t call_id);
  void cancel_all();
  /// Whether the call was cancelled before it came; forgets that cancel. Leader only.
  bool take_early_cancel(uint64_t call_id);

  bool has_calls();
  void describe_calls(std::vector<CallInFlight>& calls, bool reserved_too, base::Time now);

  /// Tells the poller what to wait for: readable unless the caller leaves its replies untaken,
  /// writable while some are unsent. Any thread, after every flush.
  void update_interest();
  /// Whether the link is not read, because its caller does not take its replies.
  bool paused() const { return paused_.load(std::memory_order_relaxed); }

  uint64_t token = 0;
  bool lost = false;          // leader: gone from the server's table
  bool said_goodbye = false;  // leader: the caller sends no more

 private:
  Server& server_;
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
  std::mutex mutex_;
  CallIndex<IncomingCall> calls_;
  std::mutex interest_mutex_;
  std::atomic<bool> paused_{false};
  uint32_t interest_;
};

}  // namespace weft::rpc

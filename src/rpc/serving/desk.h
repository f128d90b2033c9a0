// Serves the connections that were given to it: one of several loops of the serving crew.
//
// One thread leads a desk: it waits for the desk's connections, decodes calls and runs functions
// inline, or leaves them to the backlog, from which all threads of the crew take
// (rpc/serving/placement.h). Each desk has a poller and connections of its own, so that desks share
// nothing in the course of a call.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/crew.h"
#include "base/mutex.h"
#include "base/spinner.h"
#include "rpc/runtime.h"
#include "rpc/serving/incoming_call.h"
#include "rpc/serving/placement.h"
#include "rpc/serving/serving_link.h"
#include "transport/poller.h"

namespace weft::rpc {

class Server;

class Desk final : public base::CrewLoop {
 public:
  Desk(Server& server, Runtime& runtime, base::Crew& crew);

  /// False: the poller cannot watch the connection. Any thread.
  bool add(const detail::Ref<ServingLink>& link);
  /// The links, which the desk no longer has.
  std::vector<detail::Ref<ServingLink>> take_all();
  std::vector<detail::Ref<ServingLink>> links() const;
  size_t link_count() const { return link_count_.load(std::memory_order_relaxed); }

  /// What the poller waits for at this link. Any thread.
  void watch(ServingLink& link, uint32_t interest);
  void unwatch(ServingLink& link);

  // For calls, of the thread that serves them.
  /// A function is about to begin on this thread.
  static void on_user_code(const IncomingCall& call);
  /// Whether this thread sends the link's replies at the end of its batch.
  static bool flushes_later(const ServingLink& link);

  // CrewLoop:
  void lead() override;
  void interrupt() override { poller_.wake(); }
  void on_slow_user_code() override;
  void on_end() override;

 private:
  struct Role;
  static Role& role();

  // Leader only; false: the lead was lost.
  bool take_turn_anyway();
  bool take_turn();
  bool help_once();
  bool wait_and_serve();
  bool serve_events(std::optional<base::Duration> limit);
  bool serve_events(std::span<const transport::PollEvent> events);
  bool serve_held_calls(ServingLink& link);
  bool receive_and_serve(ServingLink& link);
  bool serve_frames(ServingLink& link);
  bool serve_call(ServingLink& link);
  bool drop_after_throw(ServingLink& link, std::string_view why);
  bool leads_after_throw();
  bool has_time_inline();
  bool set_companion_from(IncomingCall& call, std::span<const std::byte> note,
                          std::span<at::Tensor> tensors);
  Others others_of(ServingLink& link, base::Duration usual, base::Duration worth);
  bool serve(IncomingCall& call, wire::Frame& frame, std::span<const std::byte> arguments,
             Placement placement);
  bool spin_on(ServingLink& link);
  void drop(ServingLink& link);
  void drop_as_bad(ServingLink& link, std::string_view why);
  detail::Ref<ServingLink> find(uint64_t token) const;

  Server& server_;
  Runtime& runtime_;
  base::Crew& crew_;
  transport::Poller poller_;

  // The leader's; tells the next leader where this one was.
  detail::Ref<ServingLink> current_;
  detail::Ref<ServingLink> hot_;  // served last; polled while spinning
  bool may_call_again_ = false;   // at once: the caller has called not long before
  base::Time inline_since_{};     // in the present batch, calls for which nobody else had a slot
  base::Spinner spinner_;
  // For the pulse: the function that the leader runs.
  static constexpr uint32_t kNoFunction = UINT32_MAX;
  std::atomic<uint32_t> running_function_{kNoFunction};

  mutable base::Mutex mutex_;
  std::unordered_map<uint64_t, detail::Ref<ServingLink>> links_ WEFT_GUARDED_BY(mutex_);
  uint64_t next_token_ WEFT_GUARDED_BY(mutex_) = 1;
  std::atomic<size_t> link_count_{0};
};

}  // namespace weft::rpc

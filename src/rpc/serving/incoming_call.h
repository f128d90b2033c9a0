// One call being served, from its frame to its reply. It is the ambient of the function's thread:
// calls made from there share its deadline and are given up with it.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "rpc/calling/calling_link.h"
#include "weft/detail/ambient.h"
#include "weft/detail/arrival.h"
#include "weft/detail/function_entry.h"
#include "wire/call_prelude.h"
#include "wire/frame.h"

namespace weft::rpc {

class AgentCore;
class Server;
class ServingLink;

class IncomingCall final : public detail::Ambient, public detail::Invocation {
 public:
  IncomingCall(Server& server, detail::Ref<ServingLink> link, uint64_t id,
               const detail::FunctionEntry& function, const wire::CallPrelude& prelude,
               base::Time now);

  /// Decodes, runs and answers. `arguments` and `tensors` need live only until begin_user_code().
  void run(std::span<const std::byte> arguments, std::span<at::Tensor> tensors);
  /// Decodes; the call is then run from the backlog.
  void run_later(std::span<const std::byte> arguments, std::span<at::Tensor> tensors);

  /// Keeps what decoding needs, for a call that is decoded later: `memory`, if `arguments` lie in
  /// it, else a copy of these.
  void park(std::vector<std::byte> memory, std::span<const std::byte> arguments,
            std::vector<at::Tensor> tensors);
  /// For the thread that took the call from the backlog: runs it, or decodes it if it was parked.
  void run_from_backlog();
  /// Whether a thread that took the call from the backlog is to run it. If not, the link has it.
  bool begin_or_hold();
  /// The call cannot even be answered: its caller learns that from the end of the connection.
  void give_up(const std::string& why);
  /// Of a call in the backlog: whether it can run.
  bool is_decoded() const { return static_cast<bool>(resume_); }

  /// Sets the companion of the call; before it runs.
  void set_companion(detail::Ref<Companion> companion) { companion_ = std::move(companion); }
  detail::RefCounted* companion() override { return companion_.get(); }

  /// Answers without running.
  void refuse(ErrorCode code, const std::string& why);
  /// Nobody waits for the answer any more.
  void cancel();

  CallInFlight describe(base::Time now) const;

  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  bool in_user_code() const { return in_user_code_; }
  base::Time deadline() const { return deadline_; }
  base::Time arrived() const { return arrived_; }
  uint32_t depth() const { return depth_; }
  uint64_t id() const { return id_; }
  const detail::FunctionEntry& function() const { return function_; }
  Server& server() const { return server_; }
  WorkerInfo caller() const;
  /// A call made while serving this one: cancelled with it.
  void add_child(detail::Ref<CallingLink> link, uint64_t call_id);

  /// The call this thread works for; null if none.
  static IncomingCall* current();

  // Invocation:
  Decoder& arguments() override { return *decoder_; }
  bool must_wait() const override { return later_ || decoder_->arrival()->must_wait(); }
  void run_when_ready(detail::Task run) override;
  void begin_user_code() override;
  void reply(Encoder& value) override;
  void fail(std::exception_ptr error) override;
  void add_holder() override;
  void drop_holder() override { release(); }

  // In the link's index of calls being served.
  IncomingCall* next = nullptr;
  IncomingCall* previous = nullptr;
  bool begins_anyway = false;  // set by the link before the call returns to the backlog
  bool works = false;          // the link's, under its lock: counts as one that needs a thread

 private:
  enum class Stage : uint8_t { kArrived, kInBacklog, kAwaitsArguments, kRuns, kReturnedFuture };
  ~IncomingCall() override;
  /// Runs `body` for this call: it is what the thread works for, and what is thrown is its answer.
  template <typename F>
  void serve(F body);
  void resume();
  void give_up_waiting() noexcept;
  void decode_parked();
  template <typename F>
  void do_or_give_up(const F& step);
  void send_failed(const wire::FailedReply& failed);
  void send(wire::FrameHeader header, const Note& note, Encoder& body);
  bool claim_reply() { return !answered_.exchange(true, std::memory_order_acq_rel); }
  base::Duration time_in_user_code() const;

  detail::Ref<ServingLink> link_;  // first: keeps the server
  Server& server_;
  const uint64_t id_;
  const detail::FunctionEntry& function_;
  const uint32_t depth_;
  const base::Time arrived_;
  const base::Time deadline_;
  base::Time user_code_began_{};
  Decoder* decoder_ = nullptr;
  detail::Ref<Companion> companion_;
  bool in_user_code_ = false;
  std::atomic<Stage> stage_{Stage::kArrived};
  std::atomic<bool> answered_{false};
  std::atomic<bool> cancelled_{false};
  std::vector<std::byte> parked_memory_;
  std::span<const std::byte> parked_arguments_;
  std::vector<at::Tensor> parked_tensors_;
  std::atomic<bool> awaits_arguments_{false};  // who clears it sends the call to the backlog
  bool later_ = false;                         // is run from the backlog, though nothing is missing
  detail::Task resume_;                        // of a call in the backlog whose arguments have come
  std::exception_ptr why_not_;
  base::Mutex children_mutex_;
  std::vector<std::pair<detail::Ref<CallingLink>, uint64_t>> children_
      WEFT_GUARDED_BY(children_mutex_);
  size_t prune_at_ WEFT_GUARDED_BY(children_mutex_) = 16;
};

}  // namespace weft::rpc

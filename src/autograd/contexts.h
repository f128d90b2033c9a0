// All contexts that an agent has a part in, its own and those of others.
//
// When a context ends, its creator tells the workers that it knows to take part. Every worker with
// a part also asks the creator now and then whether the context still exists: that ends the part
// where the telling went astray or came before a late call, and where the creator is gone.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/context_state.h"
#include "base/mutex.h"
#include "rpc/agent_core.h"
#include "rpc/agent_extension.h"
#include "rpc/io/alarm.h"
#include "weft/autograd.h"

namespace weft::autograd {

/// Throws kInvalidArgument for a tensor that no pass can begin with.
void check_root(const at::Tensor& root);

/// The part that this worker has in the context that is current on this thread; null if none is.
ContextState* current_state();

class Contexts final : public rpc::AgentExtension, public std::enable_shared_from_this<Contexts> {
 public:
  explicit Contexts(rpc::AgentCore& agent);
  static Contexts& of(rpc::AgentCore& agent);

  detail::Ref<ContextState> create();
  /// Null if there is none.
  detail::Ref<ContextState> find(int64_t id);
  /// Null if this worker has no part in it; throws kContextAborted if it had and gave it up.
  detail::Ref<ContextState> find_part(int64_t id);
  /// Throws kInvalidArgument if this worker has no part in it, kContextAborted if it gave it up.
  detail::Ref<ContextState> get(int64_t id);
  /// Like get(); throws kInvalidArgument also if `leader` did not create the context.
  detail::Ref<ContextState> led_by(const WorkerInfo& leader, int64_t id);
  /// Like led_by(), but makes a part if this worker has none.
  detail::Ref<ContextState> join(const WorkerInfo& leader, int64_t id);

  /// Frees a context that this worker created, and tells the other workers to free it.
  void release(ContextState& state);
  /// Ends the context here also when there is no memory. A worker that is not told asks.
  void abort_everywhere(int64_t id, const std::string& cause) noexcept;
  /// Frees the context on this worker.
  void forget(int64_t id);
  /// Whether this worker had a part in it and could not reach its creator any more.
  bool has_given_up(int64_t id);
  enum class Status : uint8_t { kEnded, kGood, kAborted };
  Status status(int64_t id);

  Census census();

  // rpc::AgentExtension:
  detail::Ref<rpc::Companion> on_note(const WorkerInfo& from, std::span<const std::byte> note,
                                      std::span<at::Tensor> tensors) override;
  rpc::Idleness idleness() override;
  std::string unfinished() override;
  void on_stopping() override;
  void on_member_gone(const WorkerInfo& member, const Error& why) override;
  void describe(DebugInfo& info) override;

 private:
  detail::Ref<ContextState> find_or_join(int64_t id);
  detail::Ref<ContextState> take(int64_t id) WEFT_REQUIRES(mutex_);
  void check_not_given_up(int64_t id);
  [[noreturn]] void refuse_given_up(int64_t id) const;
  void give_up(int64_t id, const std::string& cause);
  std::vector<detail::Ref<ContextState>> all();
  std::shared_ptr<rpc::Alarm> make_alarm(void (Contexts::*ring)());
  void tell_ended();
  void watch_before_long() WEFT_REQUIRES(mutex_);
  void watch();
  bool ask_creators();
  void ask_creator(int rank, std::vector<int64_t> ids);
  void on_watched(int rank, const std::vector<int64_t>& ids,
                  const Future<std::vector<uint8_t>>& answer);

  const std::weak_ptr<rpc::AgentCore> agent_;
  rpc::AgentCore* const agent_address_;
  const std::shared_ptr<rpc::Runtime> runtime_;
  const base::Duration watch_interval_;

  base::Mutex mutex_;
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  std::unordered_map<int64_t, detail::Ref<ContextState>> contexts_ WEFT_GUARDED_BY(mutex_);
  std::set<int64_t> given_up_
      WEFT_GUARDED_BY(mutex_);  // because their creators could not be reached
  std::set<int> watching_
      WEFT_GUARDED_BY(mutex_);  // creators that have been asked and have not answered
  std::shared_ptr<rpc::Alarm> alarm_ WEFT_GUARDED_BY(mutex_);
  std::map<int, std::vector<int64_t>> ended_
      WEFT_GUARDED_BY(mutex_);  // by rank: own contexts whose end the worker is still to be told
  std::shared_ptr<rpc::Alarm> telling_ WEFT_GUARDED_BY(mutex_);  // from the first own context on
};

}  // namespace weft::autograd

// One worker's part of one context: the messages it sent, the gradients it got, and its share of
// the passes.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "autograd/context_gradients.h"
#include "autograd/leaf_stages.h"
#include "autograd/participants.h"
#include "autograd/pass_orders.h"
#include "autograd/pass_runner.h"
#include "autograd/tape.h"
#include "base/mutex.h"
#include "rendezvous/limits.h"
#include "rpc/agent_core.h"
#include "rpc/companion.h"
#include "weft/error.h"

namespace weft::autograd {

/// Thread-safe, and so are its parts.
class ContextState final : public rpc::Companion {
  static constexpr int kNumberBits = 48;
  // An id is never negative, so the creator's rank has the 15 bits between number and sign.
  static_assert(rendezvous::kMostMembers <= 1 << (63 - kNumberBits));

 public:
  ContextState(rpc::AgentCore& agent, int64_t id);

  int64_t id() const { return id_; }
  /// The rank of the worker that made the context, and leads its passes.
  int creator() const { return creator_of(id_); }
  static int creator_of(int64_t id) { return static_cast<int>(id >> kNumberBits); }
  static int64_t make_id(int creator, uint64_t number) {
    return (static_cast<int64_t>(creator) << kNumberBits) | static_cast<int64_t>(number);
  }
  /// This worker's rank and name.
  int self() const { return runtime_->self().info.id; }
  const std::string& worker() const { return runtime_->name(); }
  bool is_led_here() const { return creator() == self(); }
  bool is_of(rpc::AgentCore& agent) const { return &agent.runtime() == runtime_.get(); }

  const Tape& tape() const { return tape_; }
  Participants& participants() { return participants_; }
  ContextGradients& gradients() { return gradients_; }
  /// The stages that gradients of this worker's leaves go through in every pass.
  LeafStages& stages() { return stages_; }
  PassRunner& runner() { return runner_; }
  /// The creator's.
  PassOrders& orders() { return orders_; }

  /// A call that came here brought tensors.
  void on_received(const WorkerInfo& from, uint64_t message, std::span<at::Tensor> tensors);
  /// Returns at once. If they do not arrive, the context fails.
  void send_gradients(int to, const ReturnedGradients& returned);

  // All of these end the context also when there is no memory, maybe with a shorter cause.
  /// Something went wrong here: the context is given up, and its creator is told.
  void fail(const std::string& cause) noexcept;
  /// Frees everything; from now on all uses fail with kContextAborted. The first cause counts.
  void abort(const std::string& cause) noexcept;
  /// Frees everything; calls still made in it are not recorded.
  void let_go() noexcept;
  /// To be called after the context has ended.
  void free_memory() noexcept;

  std::optional<Error> aborted() const;
  /// Throws kContextAborted if it was.
  void check() const;
  /// True for the first caller only, which then tells the other workers of the abort.
  bool claim_telling() { return !told_others_.exchange(true); }

  /// Passes of one context come one after the other.
  std::mutex& leading() { return leading_; }
  uint64_t next_pass() { return ++last_pass_; }
  /// Of the creator.
  bool has_had_a_pass() const { return last_pass_ > 0; }

  // rpc::Companion:
  detail::Ref<rpc::Companion> on_call(rpc::AgentCore& agent, const WorkerInfo& to,
                                      const Encoder& arguments, rpc::Note& note) override;
  void on_reply(const WorkerInfo& from, std::span<const std::byte> note,
                std::span<at::Tensor> tensors) override;
  void on_answer(const WorkerInfo& to, const Encoder* value, rpc::Note& note) override;

 private:
  enum class Status : uint8_t { kGood, kAborted, kReleased };

  uint64_t record(int to, const Encoder& message);
  Future<RunReport> send_order(int rank, const RunOrder& order);
  bool is_good() const;
  /// Throws kContextAborted if the context was given up; false if it has ended otherwise.
  bool check_is_good() const;
  /// Ends the context here. True: a run order was pending and has been answered with `cause`.
  bool end(Status how, const std::string& cause) noexcept;
  Error why_not() const noexcept WEFT_REQUIRES(mutex_);

  const std::shared_ptr<rpc::Runtime> runtime_;
  const int64_t id_;
  Tape tape_;
  Participants participants_;
  ContextGradients gradients_;
  LeafStages stages_;
  PassOrders orders_;
  PassRunner runner_;
  std::mutex leading_;  // guards no member: the creator holds it while it leads a pass
  std::atomic<bool> told_others_{false};
  std::atomic<uint64_t> last_pass_{0};

  mutable base::Mutex mutex_;
  Status status_ WEFT_GUARDED_BY(mutex_) = Status::kGood;
  std::string cause_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::autograd

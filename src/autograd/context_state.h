// What one worker has of one context: the record of what it sent, and its part in the passes.
//
// The shell around Tape and LocalPass. What happens in a pass comes in through post(); whichever
// thread brings something works it off, with what others bring meanwhile, so nobody waits and the
// part is only ever touched by one thread.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "autograd/dispatch.h"
#include "autograd/leaf_stages.h"
#include "autograd/leaves.h"
#include "autograd/local_pass.h"
#include "autograd/tape.h"
#include "rendezvous/limits.h"
#include "rpc/agent_core.h"
#include "rpc/companion.h"
#include "weft/error.h"
#include "weft/future.h"

namespace weft::autograd {

class ContextState final : public rpc::Companion {
  static constexpr int kNumberBits = 48;
  // An id is never negative, so the creator's rank has the 15 bits between number and sign.
  static_assert(rendezvous::kMostMembers <= 1 << (63 - kNumberBits));

 public:
  ContextState(rpc::AgentCore& agent, int64_t id);

  int64_t id() const { return id_; }
  /// Of the worker that made it, and leads its passes.
  int creator() const { return creator_of(id_); }
  static int creator_of(int64_t id) { return static_cast<int>(id >> kNumberBits); }
  static int64_t make_id(int creator, uint64_t number) {
    return (static_cast<int64_t>(creator) << kNumberBits) | static_cast<int64_t>(number);
  }
  bool is_of(const rpc::AgentCore& agent) const { return &agent == agent_address_; }

  /// A call that came here brought tensors.
  void on_received(const WorkerInfo& from, uint64_t message, std::span<at::Tensor> tensors);

  // The pass. All are answered at once or later, by whichever thread; none waits.
  Future<PassAnswer> ask(uint64_t pass, std::vector<uint64_t> messages);
  Future<PassAnswer> ask_roots(uint64_t pass, std::vector<at::Tensor> roots);
  /// Answered when the part is finished, or cannot be.
  Future<RunReport> run(RunOrder order);
  /// Of the leader's own part: what it sends to one of these goes with the order it has not got
  /// yet. Gives the context up at `deadline`.
  Future<RunReport> run(RunOrder order, std::set<int> others, base::Time deadline);
  /// Sends the orders that did not go with gradients: the answers of all.
  std::vector<std::pair<int, Future<RunReport>>> send_orders();
  void on_gradients(int from, ReturnedGradients returned);
  /// Gradients that were sent from here have arrived.
  void on_delivered(int to, uint64_t pass);
  /// That worker has finished its part, so all that was sent to it has arrived.
  void on_finished(int rank, const RunReport& report);
  /// They could not be sent, or something else went wrong here: the creator is told.
  void fail(const std::string& cause);

  /// Frees everything; from now on all uses fail with kContextAborted. The first cause counts.
  void abort(const std::string& cause);
  /// Frees everything; calls still made in it are not recorded.
  void let_go();

  std::optional<Error> aborted() const;
  /// Throws kContextAborted if it was.
  void check() const;
  at::Tensor gradient(const at::Tensor& leaf) const;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;
  /// Those of `leaves`, in their order; undefined where there is none.
  std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& leaves) const;
  /// In place of the ones these leaves have. Not while a pass runs.
  void replace_gradients(const std::vector<at::Tensor>& leaves, std::vector<at::Tensor> gradients);

  /// What the gradients of some leaves of this worker go through in every pass from now on.
  LeafStages& stages() { return stages_; }

  /// Workers that calls in this context reached from here, at once or through others.
  std::set<int> participants() const;
  /// Whether there may be others.
  bool has_more_participants() const;
  /// True once: others are to be told that it was aborted.
  bool take_telling() { return !told_others_.exchange(true); }
  void note_participant(int rank);
  /// Passes of one context come one after the other.
  std::mutex& leading() { return leading_; }
  uint64_t next_pass() { return ++last_pass_; }
  /// Of the creator.
  bool has_had_a_pass() const { return last_pass_ > 0; }
  /// Of the creator: the ranks of all workers that have sparse gradients in this context.
  std::set<int> workers_with_sparse() const;
  bool busy() const;
  size_t messages() const { return tape_.size(); }
  size_t leaves() const;

  // rpc::Companion:
  detail::Ref<rpc::Companion> on_call(rpc::AgentCore& agent, const WorkerInfo& to,
                                      const Encoder& arguments, rpc::Note& note) override;
  void on_reply(const WorkerInfo& from, std::span<const std::byte> note,
                std::span<at::Tensor> tensors) override;
  void on_answer(const WorkerInfo& to, const Encoder* value, rpc::Note& note) override;

 private:
  struct Question {
    uint64_t pass;
    std::vector<uint64_t> messages;
    std::vector<at::Tensor> roots;
    std::shared_ptr<Promise<PassAnswer>> promise;
  };
  struct Arrived {
    int from;
    ReturnedGradients returned;
  };
  struct Staged {
    LeafStage::Result result;
  };
  using Event = std::variant<Question, RunOrder, Arrived, Staged>;
  enum class Status : uint8_t { kGood, kAborted, kReleased };
  using Lock = std::unique_lock<std::mutex>;

  uint64_t record(int to, const Encoder& message);
  Future<PassAnswer> ask(Question question);
  void post(Event event);
  void work_off();
  bool take_events(std::vector<Event>& events);
  void handle(Event& event);
  void handle(Question& question);
  void handle(Arrived& arrived) { part_->on_gradients(arrived.from, std::move(arrived.returned)); }
  void handle(RunOrder& order);
  void handle(Staged& staged);
  void pass_to_stage(const at::Tensor& leaf, const at::Tensor& gradient);
  void give_out(Leaves fresh);
  void publish(Leaves fresh, LeafStage::Gradients staged);
  void step();
  void lead_on();
  void send_order(int rank, const RunOrder& order);
  void send(LocalPass::Outgoing outgoing);
  bool send_with_order(LocalPass::Outgoing& outgoing);
  void send_held();
  void send_now(LocalPass::Outgoing outgoing);
  void report_if_done();
  /// Whether that was the answer to an order.
  bool end(Status how, const std::string& cause);
  Error why_not() const;

  const std::weak_ptr<rpc::AgentCore> agent_;
  const rpc::AgentCore* const agent_address_;  // for comparison only: the agent may be gone
  const int members_;                          // of the group
  const int64_t id_;
  const int self_;            // this worker's rank
  const std::string worker_;  // and name
  const std::shared_ptr<base::Clock> clock_;
  Tape tape_;
  std::mutex leading_;
  std::mutex ordering_;  // held while an order is sent
  std::atomic<bool> told_others_{false};
  std::atomic<uint64_t> last_pass_{0};

  mutable std::mutex mutex_;
  Status status_ = Status::kGood;
  std::string cause_;
  std::set<int> participants_;
  Leaves gradients_;
  bool has_sparse_ = false;            // among `gradients_`
  std::set<int> workers_with_sparse_;  // the creator's: as the last reports say
  std::vector<Event> events_;
  std::shared_ptr<Promise<RunReport>> run_;  // while a pass is ordered and not finished
  Dispatch dispatch_;
  RunOrder order_;  // the leader's: for those who have not got it
  std::set<int> unordered_;
  base::Time began_{}, deadline_ = base::Time::max();
  bool more_participants_ = false;
  std::vector<std::pair<int, Future<RunReport>>> ordered_;
  bool working_ = false;
  std::unique_ptr<LocalPass> part_;  // of the thread that works
  LeafStages stages_;
  Leaves staged_;  // of a pass whose stages are not done
};

}  // namespace weft::autograd

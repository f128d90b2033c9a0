// Runs this worker's part of the passes of one context: the shell around LocalPass.
//
// Questions, orders and gradients come in through post(). The thread that brings one handles it,
// with those that other threads bring meanwhile: no thread waits, and one at a time touches the
// pass.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "autograd/dispatch.h"
#include "autograd/leaf_stage.h"
#include "autograd/leaves.h"
#include "autograd/local_pass.h"
#include "base/mutex.h"
#include "weft/error.h"
#include "weft/future.h"

namespace weft::autograd {

class ContextState;

class PassRunner {
 public:
  /// Part of `context`, which it needs for as long as it lives.
  explicit PassRunner(ContextState& context);

  // All are answered at once or later, by any thread; none waits.
  Future<PassAnswer> ask(uint64_t pass, std::vector<uint64_t> messages);
  Future<PassAnswer> ask_roots(uint64_t pass, std::vector<at::Tensor> roots);
  /// Answered when this worker's part is finished, or cannot be. Throws if the context has ended,
  /// or another pass runs.
  Future<RunReport> run(RunOrder order);
  void on_gradients(int from, ReturnedGradients returned);
  /// Gradients that were sent from here have arrived.
  void on_delivered(int to, uint64_t pass);
  /// Gradients that were sent from here may be lost. Fails the context, unless it is known that
  /// they have arrived: then the pass may be over, and its gradients in use.
  void on_lost(int to, uint64_t pass, const std::string& cause) noexcept;
  /// That worker has finished its part, so all that was sent to it has arrived.
  void on_finished(int rank);

  /// The context has ended: no pass goes on, and the thread that works frees the context's memory.
  /// Returns whether an order was running, which is then answered with `cause`; without memory for
  /// that, with `why`.
  bool end(const Error& why, const std::string& cause) noexcept;
  bool busy() const;

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

  Future<PassAnswer> ask(Question question);
  void post(Event event);
  void work_off();
  /// In a catch block: the context fails with what was caught. Takes no memory.
  void fail() noexcept;
  bool take_events(std::vector<Event>& events) noexcept;
  void refuse(std::vector<Event>& events) noexcept;
  void handle(Question& question);
  void handle(RunOrder& order);
  void handle(Arrived& arrived);
  void handle(Staged& staged);
  void step();
  void pass_to_stage(const at::Tensor& leaf, const at::Tensor& gradient);
  void give_out(Leaves fresh);
  void publish(Leaves fresh, LeafStage::Gradients staged);
  void send(LocalPass::Outgoing outgoing);
  void send_held();
  void report_if_done() noexcept;

  ContextState& context_;

  // Touched by the thread that works only.
  std::unique_ptr<LocalPass> pass_;  // until the context has ended
  Leaves staged_;                    // of a pass whose stages are not done

  mutable base::Mutex mutex_;
  std::vector<Event> events_ WEFT_GUARDED_BY(mutex_);
  bool working_ WEFT_GUARDED_BY(mutex_) = false;
  // While a pass is ordered and not finished.
  std::shared_ptr<Promise<RunReport>> run_ WEFT_GUARDED_BY(mutex_);
  Dispatch dispatch_ WEFT_GUARDED_BY(mutex_);
  std::optional<Error> ended_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::autograd

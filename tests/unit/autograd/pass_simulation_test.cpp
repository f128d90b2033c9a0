// The backward pass under loss of connections, death, and late or repeated gradients: the real
// progress and the real parts of two to five workers, driven by one random number generator.
//
// A pass ends, with the gradients of a local run on every worker or given up; never anything else.
// WEFT_PASS_SEEDS says how many seeds, WEFT_PASS_SEED runs a single one.
// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "autograd/dispatch.h"
#include "autograd/leaves.h"
#include "autograd/local_pass.h"
#include "autograd/pass_progress.h"
#include "support/sanitizers.h"
#include "weft/error.h"

namespace weft::autograd {
namespace {

constexpr int64_t kContext = 7;
constexpr int kLeader = 0;

// Parts of the protocol to leave out.
struct Mutation {
  bool finish_undelivered = false;   // a worker is finished before its gradients have arrived
  bool run_before_answers = false;   // the order to run does not wait for the answers
  bool mourn_all_gradients = false;  // a lost acknowledgement of what has arrived counts too
};

enum class Fault { kNone, kDeath, kBrokenConnection, kRepeat, kAllBreakAfterwards };

struct Message {
  enum class Kind { kAsk, kAnswer, kRun, kFinished, kGradients, kDelivered };
  Kind kind;
  int from, to;
  std::vector<uint64_t> asked = {};
  Reached reached = {};
  std::vector<ReturnedGradients> gradients = {};  // one of kGradients, any number of the others
};

struct Worker {
  Worker() : part(kContext, tape) {}
  Tape tape;
  LocalPass part;
  Dispatch dispatch;
  Leaves gradients;
  bool alive = true;
};

// A value of the computation: on its worker, and in the local run.
struct Value {
  int worker;
  at::Tensor spread, local;
};

class World {
 public:
  World(uint64_t seed, Fault fault, const Mutation& mutation)
      : random_(seed), fault_(fault), mutation_(mutation), workers_(2 + pick(4)) {
    for (auto& worker : workers_) worker = std::make_unique<Worker>();
    compute();
  }

  /// Nothing if all is well.
  std::optional<std::string> play() {
    const uint64_t passes = 1 + pick(2);
    if (fault_ != Fault::kNone) fault_at_ = pick(60);
    for (uint64_t pass = 1; pass <= passes && !given_up_; ++pass) {
      lead(pass, pass < passes);
      if (!given_up_ && !progress_->finished()) {
        return "hangs in pass " + std::to_string(pass) + ", unfinished: " + unfinished();
      }
      if (!given_up_) root_.local.backward({}, /*retain_graph=*/true);
      if (!given_up_) {
        if (auto wrong = compare()) return wrong;
      }
      if (fault_ == Fault::kAllBreakAfterwards) {
        for (const Message& message : std::exchange(in_flight_, {})) lose_call(message);
        if (given_up_) return "given up after its end: " + *given_up_;
      }
    }
    if (given_up_ && !disturbed_) return "given up without a fault: " + *given_up_;
    return std::nullopt;
  }
  size_t steps() const { return steps_; }

 private:
  size_t pick(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }
  Worker& at(int rank) { return *workers_[static_cast<size_t>(rank)]; }

  // --- the computation -------------------------------------------------------------------------

  Value leaf() {
    const int worker = static_cast<int>(pick(workers_.size()));
    const double number = 0.5 + static_cast<double>(pick(100)) / 100;
    Value value{worker, at::full({}, number, at::kDouble), at::full({}, number, at::kDouble)};
    value.spread.set_requires_grad(true);
    value.local.set_requires_grad(true);
    leaves_.push_back(value);
    return value;
  }

  at::Tensor send(const Value& value, int to) {
    if (value.worker == to) return value.spread;
    const uint64_t message = at(value.worker).tape.record(to, {edge_of(value.spread)});
    std::vector<at::Tensor> received{value.spread.detach().clone()};
    received[0].set_requires_grad(true);
    begin_at(std::make_shared<Receipt>(kContext, value.worker, message), received);
    return received[0];
  }

  Value combine(const Value& a, const Value& b) {
    const int worker = static_cast<int>(pick(workers_.size()));
    const at::Tensor x = send(a, worker), y = send(b, worker);
    switch (pick(3)) {
      case 0:
        return {worker, x * y, a.local * b.local};
      case 1:
        return {worker, x + y, a.local + b.local};
      default:
        return {worker, x * at::tanh(y), a.local * at::tanh(b.local)};
    }
  }

  void compute() {
    std::vector<Value> values;
    for (size_t i = 0; i < 3; ++i) values.push_back(leaf());
    for (size_t i = 4 + pick(12); i > 0; --i) {
      values.push_back(pick(4) == 0
                           ? leaf()
                           : combine(values[pick(values.size())], values[pick(values.size())]));
    }
    // What is not used by the last is unused altogether.
    const Value last = combine(values[values.size() - 1], values[values.size() - 2]);
    root_ = {kLeader, send(last, kLeader), last.local};
  }

  // --- the pass --------------------------------------------------------------------------------

  void lead(uint64_t pass, bool retain_graph) {
    const c10::AutoGradMode off(false);
    pass_ = pass;
    retain_graph_ = retain_graph;
    progress_.emplace(std::set<int>{kLeader});
    carry_out(progress_->begin({at(kLeader).part.reached_by_roots(pass, {root_.spread})}));
    while (!given_up_ && !progress_->finished() && step()) ++steps_;
  }

  void carry_out(const PassProgress::Orders& orders) {
    for (const auto& [rank, messages] : orders.ask) {
      post({Message::Kind::kAsk, kLeader, rank, messages});
      if (mutation_.run_before_answers) order(rank);
    }
    if (orders.run.empty()) return;
    // The leader's own part first: what it has for others goes with their orders.
    unordered_ = {orders.run.begin(), orders.run.end()};
    unordered_.erase(kLeader);
    reports_ = unordered_.size() == 1;
    begin(kLeader);
    while (at(kLeader).part.can_step()) work(kLeader);
    for (const int rank : std::exchange(unordered_, {})) order(rank);
  }

  void order(int rank) { post({Message::Kind::kRun, kLeader, rank}); }

  void begin(int rank) {
    Worker& worker = at(rank);
    const bool reports = reports_ && rank != kLeader;
    worker.dispatch.begin(pass_, reports ? std::optional(kLeader) : std::nullopt);
    worker.part.run({{kContext, pass_}, retain_graph_, false, reports_, {}});
    after(rank);
  }

  // Calls of the leader fail when their worker is gone; so do gradients, and their sender says so.
  void post(Message message) {
    if (!at(message.to).alive || broken_.contains(pair(message.from, message.to))) {
      return lose(message);
    }
    in_flight_.push_back(std::move(message));
  }

  void lose(const Message& message) {
    if (at(message.from).alive) give_up("a message to a worker that is gone");
  }

  void give_up(const std::string& why) {
    if (!given_up_) given_up_ = why;
  }

  /// False: nothing is left to happen.
  bool step() {
    if (steps_ == fault_at_) disturb();
    std::vector<int> able;
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank]->alive && workers_[rank]->part.can_step())
        able.push_back(static_cast<int>(rank));
    }
    const size_t choices = able.size() + in_flight_.size();
    if (choices == 0) return false;
    const size_t choice = pick(choices);
    if (choice < able.size()) {
      work(able[choice]);
    } else {
      deliver(take_message(choice - able.size()));
    }
    return true;
  }

  Message take_message(size_t index) {
    Message message = in_flight_[index];  // a copy: it may come again
    const bool repeats = fault_ == Fault::kRepeat && message.kind == Message::Kind::kGradients &&
                         repeats_left_ > 0 && pick(3) == 0;
    if (repeats) {
      --repeats_left_;  // stays, and comes again at any time
    } else {
      in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(index));
    }
    return message;
  }

  void work(int rank) {
    Worker& worker = at(rank);
    if (!worker.part.next_is_quick()) send_all(rank, worker.dispatch.send_held());
    if (auto outgoing = worker.part.step()) {
      if (outgoing->to == rank) {
        send_all(rank, {std::move(*outgoing)});
      } else if (rank == kLeader && unordered_.erase(outgoing->to) == 1) {
        post({Message::Kind::kRun, rank, outgoing->to, {}, {}, {std::move(outgoing->returned)}});
      } else {
        send_all(rank, worker.dispatch.send(std::move(*outgoing)));
      }
    }
    after(rank);
  }

  void send_all(int rank, std::vector<LocalPass::Outgoing> all) {
    for (auto& each : all) {
      post({Message::Kind::kGradients, rank, each.to, {}, {}, {std::move(each.returned)}});
    }
  }

  void after(int rank) {
    Worker& worker = at(rank);
    if (auto fresh = worker.part.take_finished()) {
      worker.gradients.add(std::move(*fresh));
      worker.dispatch.on_ran();
    }
    if (mutation_.finish_undelivered) {
      for (int other = 0; other < static_cast<int>(workers_.size()); ++other) {
        worker.dispatch.on_finished(other);
      }
    }
    if (auto report = worker.dispatch.take_report()) {
      post({Message::Kind::kFinished, rank, kLeader, {}, {}, std::move(*report)});
    }
    if (!worker.part.can_step()) send_all(rank, worker.dispatch.send_held());
  }

  void deliver(Message message) {
    Worker& worker = at(message.to);
    if (!worker.alive) return lose(message);
    try {
      handle(message, worker);
    } catch (const std::exception& error) {
      give_up(error.what());
      if (!disturbed_) unexpected_ = error.what();
    }
    after(message.to);
  }

  void handle(Message& message, Worker& worker) {
    switch (message.kind) {
      case Message::Kind::kAsk: {
        Message answer{Message::Kind::kAnswer, message.to, kLeader};
        answer.reached = worker.part.reached_by(pass_, message.asked);
        return post(std::move(answer));
      }
      case Message::Kind::kAnswer:
        return carry_out(progress_->on_answer(message.reached));
      case Message::Kind::kRun:
        begin(message.to);
        for (auto& each : message.gradients) {
          worker.part.on_gradients(message.from, std::move(each));
        }
        return;
      case Message::Kind::kFinished:
        for (auto& each : message.gradients) {
          worker.part.on_gradients(message.from, std::move(each));
        }
        worker.dispatch.on_finished(message.from);
        return progress_->on_finished(message.from);
      case Message::Kind::kGradients: {
        const uint64_t pass = message.gradients[0].pass.number;
        worker.part.on_gradients(message.from, std::move(message.gradients[0]));
        if (message.from == message.to) return;
        Message delivered{Message::Kind::kDelivered, message.to, message.from};
        delivered.asked = {pass};
        return post(std::move(delivered));
      }
      case Message::Kind::kDelivered:
        return worker.dispatch.on_delivered(message.from, message.asked[0]);
    }
  }

  // --- faults ----------------------------------------------------------------------------------

  static std::pair<int, int> pair(int a, int b) { return {std::min(a, b), std::max(a, b)}; }

  void disturb() {
    if (fault_ == Fault::kRepeat) repeats_left_ = 5;
    if (fault_ != Fault::kDeath && fault_ != Fault::kBrokenConnection) return;
    disturbed_ = true;
    const int victim = 1 + static_cast<int>(pick(workers_.size() - 1));
    const int other = static_cast<int>(pick(workers_.size()));
    if (fault_ == Fault::kDeath) at(victim).alive = false;
    const auto hit = [&](const Message& message) {
      if (fault_ == Fault::kDeath) return message.from == victim || message.to == victim;
      return pair(message.from, message.to) == pair(victim, other) && victim != other;
    };
    // What is on its way is lost. Whoever made the call learns it: the leader of questions and
    // orders, a worker of its gradients.
    std::vector<Message> rest;
    for (Message& message : in_flight_) (hit(message) ? lost_ : rest).push_back(std::move(message));
    in_flight_ = std::move(rest);
    for (const Message& message : std::exchange(lost_, {})) lose_call(message);
    // So it does of calls that have arrived and are not answered.
    if (fault_ == Fault::kDeath && progress_->unfinished().contains(victim))
      give_up("an order failed");
    if (fault_ == Fault::kBrokenConnection) {
      if (other != victim) broken_.insert(pair(victim, other));
      if (pair(victim, other).first == kLeader && other != victim &&
          progress_->unfinished().contains(pair(victim, other).second)) {
        give_up("an order's connection broke");
      }
    }
  }

  void lose_call(const Message& message) {
    const bool is_reply = message.kind == Message::Kind::kAnswer ||
                          message.kind == Message::Kind::kFinished ||
                          message.kind == Message::Kind::kDelivered;
    const int caller = is_reply ? message.to : message.from;
    const int callee = is_reply ? message.from : message.to;
    if (!at(caller).alive) return;
    const bool brings_gradients =
        message.kind == Message::Kind::kGradients || message.kind == Message::Kind::kDelivered;
    if (brings_gradients && callee != caller && !mutation_.mourn_all_gradients &&
        !at(caller).dispatch.on_lost(callee, pass_)) {
      return;
    }
    give_up("a call failed");
  }

  // --- what must be ----------------------------------------------------------------------------

  std::optional<std::string> compare() {
    if (unexpected_) return "an error without a fault: " + *unexpected_;
    for (const Value& leaf : leaves_) {
      if (!at(leaf.worker).alive) continue;
      const at::Tensor spread = at(leaf.worker).gradients.find(leaf.spread);
      const at::Tensor local = leaf.local.grad();
      const double got = spread.defined() ? spread.item<double>() : 0;
      const double wanted = local.defined() ? local.item<double>() : 0;
      if (std::abs(got - wanted) > 1e-9 * (1 + std::abs(wanted))) {
        return "a gradient of " + std::to_string(got) + " instead of " + std::to_string(wanted);
      }
    }
    return std::nullopt;
  }

  std::string unfinished() {
    std::string ranks;
    for (const int rank : progress_->unfinished()) ranks += std::to_string(rank) + " ";
    return ranks;
  }

  std::mt19937_64 random_;
  const Fault fault_;
  const Mutation mutation_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Value> leaves_;
  Value root_;
  std::optional<PassProgress> progress_;
  uint64_t pass_ = 0;
  bool retain_graph_ = false;
  std::set<int> unordered_;  // by the leader, while it is at its own part
  bool reports_ = false;
  std::vector<Message> in_flight_, lost_;
  std::set<std::pair<int, int>> broken_;
  size_t steps_ = 0;
  std::optional<size_t> fault_at_;
  size_t repeats_left_ = 0;
  bool disturbed_ = false;
  std::optional<std::string> given_up_, unexpected_;
};

uint64_t seeds() {
  const char* text = std::getenv("WEFT_PASS_SEEDS");
  return (text ? std::strtoull(text, nullptr, 10) : 5000) / test::kSlowness;
}

/// The first seed that goes wrong, and how.
std::optional<std::string> first_failure(Fault fault, uint64_t count,
                                         const Mutation& mutation = {}) {
  uint64_t first = 1;
  if (const char* one = std::getenv("WEFT_PASS_SEED")) {
    first = std::strtoull(one, nullptr, 10);
    count = 1;
  }
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (auto wrong = World(seed, fault, mutation).play()) {
      return "seed " + std::to_string(seed) + ": " + *wrong;
    }
  }
  return std::nullopt;
}

TEST(PassSimulation, WithoutFaultsTheGradientsAreThoseOfALocalRun) {
  EXPECT_EQ(first_failure(Fault::kNone, seeds()), std::nullopt);
}
TEST(PassSimulation, AfterADeathThePassIsRightOrGivenUp) {
  EXPECT_EQ(first_failure(Fault::kDeath, seeds()), std::nullopt);
}
TEST(PassSimulation, AfterABrokenConnectionThePassIsRightOrGivenUp) {
  EXPECT_EQ(first_failure(Fault::kBrokenConnection, seeds()), std::nullopt);
}
TEST(PassSimulation, RepeatedAndLateGradientsChangeNothing) {
  EXPECT_EQ(first_failure(Fault::kRepeat, seeds()), std::nullopt);
}
TEST(PassSimulation, WhatIsLostAfterItsEndDoesNotUndoAPass) {
  EXPECT_EQ(first_failure(Fault::kAllBreakAfterwards, seeds()), std::nullopt);
}
TEST(PassSimulation, FindsOutAWorkerThatIsFinishedTooEarly) {
  EXPECT_NE(first_failure(Fault::kDeath, 20'000, {.finish_undelivered = true}), std::nullopt);
}
TEST(PassSimulation, FindsOutAnOrderThatComesTooEarly) {
  EXPECT_NE(first_failure(Fault::kNone, 2000, {.run_before_answers = true}), std::nullopt);
}
TEST(PassSimulation, FindsOutAnAbortAfterTheEnd) {
  EXPECT_NE(first_failure(Fault::kAllBreakAfterwards, 2000, {.mourn_all_gradients = true}),
            std::nullopt);
}

}  // namespace
}  // namespace weft::autograd

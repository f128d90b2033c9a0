// Termination under random interleavings: workers that call each other in chains, messages that
// overtake each other, workers that die. A seed that fails is printed.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "rpc/group/termination.h"

namespace weft::rpc {
namespace {

struct Message {
  enum class Kind { kCall, kReply, kReport, kVerdict } kind;
  int from, to;
  int depth = 0;
  size_t task = 0;  // kCall: the caller's task that waits for it, kNoTask: nobody; kReply: same
  uint64_t activity = 0;  // kReport
  bool finished = false;  // kVerdict
};
constexpr size_t kNoTask = SIZE_MAX;

struct Task {
  int caller;
  size_t callers_task;
  int depth;
  bool waits = false;
  bool done = false;
};

struct Worker {
  bool alive = true;
  bool wants_to_stop = false;
  bool report_out = false;
  bool told_to_stop = false;
  int calls_left = 0;  // that its program makes before it wants to stop
  int outstanding = 0;
  int serving = 0;
  uint64_t activity = 0;
  std::vector<Task> tasks;

  bool idle() const { return outstanding == 0 && serving == 0; }
};

class Simulation {
 public:
  Simulation(uint32_t seed, bool with_deaths)
      : random_(seed),
        workers_(2 + random_() % 5),
        termination_(static_cast<int>(workers_.size())),
        deaths_left_(with_deaths ? static_cast<int>(random_() % workers_.size()) : 0) {
    for (Worker& worker : workers_) worker.calls_left = static_cast<int>(random_() % 6);
  }

  // False if the group does not finish.
  bool run() {
    for (int step = 0; step < 100'000; ++step) {
      if (std::all_of(workers_.begin(), workers_.end(),
                      [](const Worker& each) { return !each.alive || each.told_to_stop; })) {
        return true;
      }
      take_a_step();
    }
    return false;
  }

 private:
  int pick(size_t n) { return static_cast<int>(random_() % n); }

  void take_a_step() {
    const int rank = pick(workers_.size());
    Worker& worker = workers_[static_cast<size_t>(rank)];
    switch (pick(8)) {
      case 0:
        return run_program(rank, worker);
      case 1:
        return report_if_idle(rank, worker);
      case 2:
        return work(rank, worker);
      case 3:
        return die_perhaps(rank, worker);
      case 4:
        return notice_a_death();
      default:
        return deliver_any();
    }
  }

  void run_program(int rank, Worker& worker) {
    if (!worker.alive || worker.wants_to_stop) return;
    if (worker.calls_left-- > 0) {
      call(rank, kNoTask, 0);
    } else {
      worker.wants_to_stop = true;
    }
  }

  void call(int from, size_t task, int depth) {
    Worker& caller = workers_[static_cast<size_t>(from)];
    ++caller.outstanding;
    ++caller.activity;
    messages_.push_back({Message::Kind::kCall, from, pick(workers_.size()), depth, task});
  }

  void report_if_idle(int rank, Worker& worker) {
    if (!worker.alive || !worker.wants_to_stop || worker.report_out || worker.told_to_stop) return;
    if (!worker.idle()) return;
    worker.report_out = true;
    messages_.push_back({Message::Kind::kReport, rank, 0, 0, kNoTask, worker.activity});
  }

  // One of the calls being served makes a call of its own, with or without waiting, or returns.
  void work(int rank, Worker& worker) {
    if (!worker.alive || worker.tasks.empty()) return;
    const auto index = static_cast<size_t>(pick(worker.tasks.size()));
    if (worker.tasks[index].done || worker.tasks[index].waits) return;
    const int depth = worker.tasks[index].depth;
    if (depth < 6 && pick(2) == 0) {
      worker.tasks[index].waits = pick(3) != 0;
      call(rank, worker.tasks[index].waits ? index : kNoTask, depth + 1);
      if (worker.tasks[index].waits) return;
    }
    Task& task = worker.tasks[index];
    task.done = true;
    --worker.serving;
    messages_.push_back({Message::Kind::kReply, rank, task.caller, 0, task.callers_task});
  }

  void die_perhaps(int rank, Worker& worker) {
    if (rank == 0 || !worker.alive || deaths_left_ == 0 || pick(20) != 0) return;
    --deaths_left_;
    worker.alive = false;
    dead_.push_back(rank);
    // What it sent and nobody has read is lost with its connections; whoever waits for it is told.
    std::erase_if(messages_, [this, rank](const Message& each) {
      if (each.from != rank) return false;
      if (each.kind == Message::Kind::kReply) answered(each.to, each.task);
      return true;
    });
    for (size_t i = 0; i < workers_.size(); ++i) served_by_the_dead(static_cast<int>(i), rank);
  }

  void served_by_the_dead(int caller, int dead) {
    for (const Task& task : workers_[static_cast<size_t>(dead)].tasks) {
      if (!task.done && task.caller == caller) answered(caller, task.callers_task);
    }
  }

  void notice_a_death() {
    if (dead_.empty()) return;
    termination_.on_dead(dead_[static_cast<size_t>(pick(dead_.size()))]);
  }

  void deliver_any() {
    if (messages_.empty()) return;
    std::swap(messages_[static_cast<size_t>(pick(messages_.size()))], messages_.back());
    const Message message = messages_.back();
    messages_.pop_back();
    Worker& to = workers_[static_cast<size_t>(message.to)];
    if (!to.alive) {
      if (message.kind == Message::Kind::kCall) answered(message.from, message.task);
      return;
    }
    switch (message.kind) {
      case Message::Kind::kCall:
        ++to.serving;
        ++to.activity;
        to.tasks.push_back({message.from, message.task, message.depth});
        break;
      case Message::Kind::kReply:
        answered(message.to, message.task);
        break;
      case Message::Kind::kReport:
        termination_.on_report(message.from, true, message.activity,
                               [this, rank = message.from](const Termination::Verdict& verdict) {
                                 on_verdict(rank, verdict);
                               });
        break;
      case Message::Kind::kVerdict:
        to.report_out = false;
        to.told_to_stop = message.finished;
        break;
    }
  }

  void answered(int caller, size_t task) {
    Worker& worker = workers_[static_cast<size_t>(caller)];
    if (!worker.alive) return;
    --worker.outstanding;
    if (task != kNoTask) worker.tasks[task].waits = false;
  }

  void on_verdict(int rank, const Termination::Verdict& verdict) {
    if (verdict.finished) expect_nothing_left();
    messages_.push_back({Message::Kind::kVerdict, 0, rank, 0, kNoTask, 0, verdict.finished});
  }

  void expect_nothing_left() {
    for (const Message& message : messages_) {
      ASSERT_NE(message.kind, Message::Kind::kCall) << "finished with a call on its way";
    }
    for (const Worker& worker : workers_) {
      ASSERT_TRUE(!worker.alive || worker.idle()) << "finished while somebody works";
      ASSERT_TRUE(!worker.alive || worker.wants_to_stop);
    }
  }

  std::mt19937 random_;
  std::vector<Worker> workers_;
  Termination termination_;
  std::vector<Message> messages_;
  std::vector<int> dead_;
  int deaths_left_;
};

void run_seeds(uint32_t seeds, bool with_deaths) {
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    Simulation simulation(seed, with_deaths);
    ASSERT_TRUE(simulation.run()) << "does not finish, seed " << seed;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

TEST(TerminationSimulation, FinishesWhenNothingIsLeftAndNotBefore) { run_seeds(5000, false); }
TEST(TerminationSimulation, FinishesWithoutThoseWhoDied) { run_seeds(5000, true); }

}  // namespace
}  // namespace weft::rpc

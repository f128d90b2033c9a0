// Reinforcement learning with one agent and several observers: the agent chooses every action by a
// remote call and learns after every episode, until the pole stays upright.
//
// Observers live on their own workers and are referred to by the agent; the agent is referred to by
// the observers. There is not a line about sockets, threads or lifetimes here.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "observer.h"

namespace {

struct Flags {
  int world_size = 3;
  AgentOptions agent;
  int log_interval = 10;
  int64_t episodes = 0;
  uint64_t steps = 0;
  std::string csv;
};

volatile sig_atomic_t interrupted = 0;
void on_interrupt(int) { interrupted = 1; }

// What the user sees while it learns: a line that is written over on a terminal, one line every
// log interval elsewhere.
class Progress {
 public:
  explicit Progress(const Flags& flags)
      : interval_(flags.log_interval), live_(isatty(STDOUT_FILENO)) {
    if (!flags.csv.empty()) {
      csv_.open(flags.csv);
      csv_ << "episode,last_reward,average_reward,steps,seconds\n";
    }
  }
  void on_episode(int64_t episode, double last, const Agent& agent) {
    if (csv_.is_open()) {
      csv_ << episode << ',' << last << ',' << agent.running_reward() << ',' << agent.steps() << ','
           << seconds() << '\n';
    }
    const bool logged = episode % interval_ == 0;
    if (live_ || logged) {
      std::printf("%sEpisode %ld\tLast reward: %.2f\tAverage reward: %.2f%s",
                  live_ ? "\r\033[K" : "", static_cast<long>(episode), last, agent.running_reward(),
                  logged ? "\n" : "");
      std::fflush(stdout);
    }
  }
  void finish(int64_t episodes, const Agent& agent, const char* how) {
    if (live_) std::printf("\r\033[K");
    const auto steps = static_cast<double>(agent.steps());
    std::printf("%s: %ld episodes, %.1f s, %.0f environment steps, %.0f calls/s\n", how,
                static_cast<long>(episodes), seconds(), steps, 2 * steps / seconds());
    std::printf("steps per second: %.1f\n", steps / seconds());
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const int interval_;
  const bool live_;
  std::ofstream csv_;
};

void run_agent(const Flags& flags) {
  const auto agent = std::make_shared<Agent>(flags.agent, flags.world_size - 1);
  const AgentRef self(agent);
  std::vector<weft::RRef<Observer>> observers;
  for (int rank = 1; rank < flags.world_size; ++rank) {
    observers.push_back(weft::remote<Observer>("obs" + std::to_string(rank),
                                               flags.agent.seed + static_cast<uint64_t>(rank) - 1));
  }
  std::printf("This will run until reward threshold of %.1f is reached. Ctrl+C to exit.\n",
              CartPole::kRewardThreshold);
  Progress progress(flags);
  for (int64_t episode = 1;; ++episode) {
    progress.on_episode(episode, agent->run_episode(observers, self), *agent);
    if (agent->running_reward() > CartPole::kRewardThreshold) {
      progress.finish(episode, *agent, "Solved");
      std::printf("Solved! Running reward is now %.2f!\n", agent->running_reward());
      return;
    }
    const bool enough = flags.steps > 0 && agent->steps() >= flags.steps;
    if (interrupted || enough || episode == flags.episodes) {
      return progress.finish(episode, *agent, interrupted ? "Interrupted" : "Stopped");
    }
  }
}

int run_worker(const Flags& flags, int rank) {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // the agent ends the episode, then everybody leaves
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  weft::init_rpc(rank == 0 ? "agent" : "obs" + std::to_string(rank));
  if (rank == 0) run_agent(flags);
  weft::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("One agent and several observers learn CartPole-v1 by remote calls.");
  app.add_option("--world-size", flags.world_size, "workers: the agent and the observers")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--gamma", flags.agent.gamma, "how much to value future rewards")
      ->capture_default_str();
  app.add_option("--seed", flags.agent.seed, "random seed")->capture_default_str();
  app.add_option("--log-interval", flags.log_interval, "episodes between lines")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--episodes", flags.episodes, "stop after so many; 0: when it is solved")
      ->capture_default_str();
  app.add_option("--steps", flags.steps, "stop after so many steps; 0: when it is solved")
      ->capture_default_str();
  app.add_flag("--batch", flags.agent.batch, "answer all observers with one forward pass");
  app.add_option("--csv", flags.csv, "write the curve to this file");
  CLI11_PARSE(app, argc, argv);
  return weft::launch(argc, argv, flags.world_size,
                      [&flags](int rank, int) { return run_worker(flags, rank); });
}

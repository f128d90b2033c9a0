// SPDX-License-Identifier: BSD-3-Clause
#include "agent.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include <torch/torch.h>

#include "observer.h"

namespace {

constexpr int64_t kHidden = 128;
constexpr double kDropout = 0.6;

struct PolicyImpl : torch::nn::Module {
  PolicyImpl()
      : affine1(register_module("affine1", torch::nn::Linear(4, kHidden))),
        affine2(register_module("affine2", torch::nn::Linear(kHidden, 2))) {}

  // With dropout that the caller has drawn: what the policy decided can be computed once more.
  torch::Tensor forward(const torch::Tensor& states, const torch::Tensor& dropout) {
    return torch::softmax(affine2(affine1(states).mul_(dropout).relu_()), 1);
  }

  torch::nn::Linear affine1;
  torch::nn::Linear affine2;
};
TORCH_MODULE(Policy);

// A few numbers at a time are drawn much faster here than by libtorch's operators.
class Chance {
 public:
  explicit Chance(uint64_t seed) : engine_(seed) {}
  void draw_dropout(float* factors, int64_t count) {
    constexpr double kKept = 1 - kDropout;
    constexpr auto kBelow = static_cast<uint32_t>(kKept * 0x1p32);
    std::generate_n(factors, count,
                    [&] { return engine_() < kBelow ? static_cast<float>(1 / kKept) : 0.0F; });
  }
  int64_t pick(const float* probabilities) {
    return std::discrete_distribution<int64_t>(probabilities, probabilities + 2)(engine_);
  }

 private:
  std::mt19937 engine_;
};

// What the policy is asked at one time; the memory is used again.
struct Questions {
  void resize(int64_t rows) {
    if (states.defined() && states.size(0) == rows) return;
    states = torch::empty({rows, 4});
    dropouts = torch::empty({rows, kHidden});
  }
  torch::Tensor states, dropouts;
};

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// What one observer saw and was told in this episode, as the training step needs it.
struct Episode {
  std::vector<CartPole::State> states;
  std::vector<float> dropouts;  // kHidden a step
  std::vector<int64_t> actions;
  std::vector<double> rewards;
};

}  // namespace

struct Agent::Learning {
  explicit Learning(uint64_t seed) : chance(seed) {}

  Chance chance;
  Policy policy;
  torch::optim::Adam optimizer{policy->parameters(), torch::optim::AdamOptions(1e-2)};
  Questions questions;
  std::map<int, Episode> episodes;  // by observer
};

Agent::Agent(const AgentOptions& options, int observers) : options_(options) {
  torch::manual_seed(options.seed);
  learning_ = std::make_unique<Learning>(options.seed);
  for (int id = 1; id <= observers; ++id) learning_->episodes[id];
}

Agent::~Agent() = default;

weft::Future<int64_t> select_action(std::shared_ptr<Agent>& agent, int observer,
                                    CartPole::State state) {
  return agent->select_action(observer, state);
}
void report_reward(std::shared_ptr<Agent>& agent, int observer, double reward) {
  agent->report_reward(observer, reward);
}

weft::Future<int64_t> Agent::select_action(int observer, CartPole::State state) {
  ++steps_;
  std::unique_lock lock(mutex_);
  if (!options_.batch) return weft::make_ready_future(choose({observer}, {state}).front());
  questions_.push_back({observer, state, {}});
  weft::Future<int64_t> answer = questions_.back().answer.future();
  answer_if_all_asked(lock);
  return answer;
}

void Agent::report_reward(int observer, double reward) {
  std::lock_guard lock(mutex_);
  learning_->episodes.at(observer).rewards.push_back(reward);
}

void Agent::on_observer_done() {
  std::unique_lock lock(mutex_);
  --playing_;
  answer_if_all_asked(lock);
}

void Agent::answer_if_all_asked(std::unique_lock<std::mutex>& lock) {
  if (questions_.empty() || questions_.size() < playing_) return;
  std::vector<Question> questions = std::exchange(questions_, {});
  std::vector<int> observers;
  std::vector<CartPole::State> states;
  for (const Question& question : questions) {
    observers.push_back(question.observer);
    states.push_back(question.state);
  }
  const std::vector<int64_t> actions = choose(observers, states);
  lock.unlock();  // whoever is answered may ask again at once
  for (size_t i = 0; i < questions.size(); ++i) questions[i].answer.set_value(actions[i]);
}

// Under the lock. Without a graph: the training step computes all steps of an episode at once, by
// the same parameters and dropout, which gives the same gradient as one graph per step for far less
// work.
std::vector<int64_t> Agent::choose(const std::vector<int>& observers,
                                   const std::vector<CartPole::State>& states) {
  const c10::InferenceMode no_graph;
  Questions& asked = learning_->questions;
  asked.resize(static_cast<int64_t>(states.size()));
  std::memcpy(asked.states.data_ptr(), states.data(), states.size() * sizeof(CartPole::State));
  const auto* dropout = asked.dropouts.data_ptr<float>();
  learning_->chance.draw_dropout(asked.dropouts.data_ptr<float>(), asked.dropouts.numel());
  const torch::Tensor probabilities = learning_->policy(asked.states, asked.dropouts);
  const auto* row = probabilities.data_ptr<float>();
  std::vector<int64_t> actions;
  for (size_t i = 0; i < states.size(); ++i, row += 2, dropout += kHidden) {
    actions.push_back(learning_->chance.pick(row));
    Episode& episode = learning_->episodes.at(observers[i]);
    episode.states.push_back(states[i]);
    episode.dropouts.insert(episode.dropouts.end(), dropout, dropout + kHidden);
    episode.actions.push_back(actions.back());
  }
  return actions;
}

double Agent::run_episode(const std::vector<weft::RRef<Observer>>& observers,
                          const AgentRef& self) {
  {
    std::lock_guard lock(mutex_);
    playing_ = observers.size();
  }
  std::vector<weft::Future<void>> episodes;
  for (const auto& observer : observers) {
    // Waiting for what then() returns means that on_observer_done() has run, too.
    episodes.push_back(observer.within(std::chrono::minutes(5))
                           .rpc_async<&Observer::run_episode>(self)
                           .then([agent = shared_from_this()] { agent->on_observer_done(); }));
  }
  wait_all(episodes);
  return finish_episode();
}

double Agent::finish_episode() {
  std::lock_guard lock(mutex_);
  Episode all;  // of all observers in a row, as the tutorial does it
  double smallest = std::numeric_limits<double>::infinity();
  for (auto& [id, episode] : learning_->episodes) {
    smallest =
        std::min(smallest, std::accumulate(episode.rewards.begin(), episode.rewards.end(), 0.0));
    append(all.states, episode.states);
    append(all.dropouts, episode.dropouts);
    append(all.actions, episode.actions);
    append(all.rewards, episode.rewards);
    episode = {};
  }
  running_reward_ = 0.05 * smallest + 0.95 * running_reward_;

  const auto steps = static_cast<int64_t>(all.states.size());
  std::vector<double> returns(all.rewards.size());
  double sum = 0;
  for (size_t i = returns.size(); i-- > 0;)
    returns[i] = sum = all.rewards[i] + options_.gamma * sum;
  torch::Tensor weights = torch::tensor(returns, torch::kFloat);
  weights = (weights - weights.mean()) / (weights.std() + std::numeric_limits<float>::epsilon());
  const torch::Tensor probabilities =
      learning_->policy(torch::from_blob(all.states.data(), {steps, 4}),
                        torch::from_blob(all.dropouts.data(), {steps, kHidden}));
  const torch::Tensor chosen = torch::tensor(all.actions).unsqueeze(1);
  const torch::Tensor loss = (-probabilities.gather(1, chosen).squeeze(1).log() * weights).sum();
  learning_->optimizer.zero_grad();
  loss.backward();
  learning_->optimizer.step();
  return smallest;
}

// SPDX-License-Identifier: BSD-3-Clause
#include "agent.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include <torch/torch.h>

#include "observer.h"

namespace {

struct PolicyImpl : torch::nn::Module {
  PolicyImpl()
      : affine1(register_module("affine1", torch::nn::Linear(4, 128))),
        dropout(register_module("dropout", torch::nn::Dropout(0.6))),
        affine2(register_module("affine2", torch::nn::Linear(128, 2))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(dropout(affine1(x)));
    return torch::softmax(affine2(x), 1);
  }

  torch::nn::Linear affine1;
  torch::nn::Dropout dropout;
  torch::nn::Linear affine2;
};
TORCH_MODULE(Policy);

}  // namespace

struct Agent::Learning {
  Policy policy;
  torch::optim::Adam optimizer{policy->parameters(), torch::optim::AdamOptions(1e-2)};
  std::map<int, std::vector<torch::Tensor>> log_probabilities;
};

Agent::Agent(const AgentOptions& options, int observers) : options_(options) {
  torch::manual_seed(options.seed);
  learning_ = std::make_unique<Learning>();
  for (int id = 1; id <= observers; ++id) {
    rewards_[id];
    learning_->log_probabilities[id];
  }
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
  rewards_.at(observer).push_back(reward);
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

// Under the lock.
std::vector<int64_t> Agent::choose(const std::vector<int>& observers,
                                   const std::vector<CartPole::State>& states) {
  torch::Tensor input = torch::empty({static_cast<int64_t>(states.size()), 4});
  std::memcpy(input.data_ptr(), states.data(), states.size() * sizeof(CartPole::State));
  const torch::Tensor probabilities = learning_->policy(input);
  const torch::Tensor chosen = probabilities.detach().multinomial(1);
  const torch::Tensor logs = probabilities.gather(1, chosen).log();
  std::vector<int64_t> actions(chosen.data_ptr<int64_t>(),
                               chosen.data_ptr<int64_t>() + states.size());
  for (size_t i = 0; i < observers.size(); ++i) {
    learning_->log_probabilities.at(observers[i]).push_back(logs[static_cast<int64_t>(i)]);
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
                           .then([this] { on_observer_done(); }));
  }
  wait_all(episodes);
  return finish_episode();
}

double Agent::finish_episode() {
  std::lock_guard lock(mutex_);
  std::vector<torch::Tensor> probabilities;
  std::vector<double> rewards;
  double smallest = std::numeric_limits<double>::infinity();
  for (auto& [id, earned] : rewards_) {
    auto& logs = learning_->log_probabilities[id];
    probabilities.insert(probabilities.end(), logs.begin(), logs.end());
    rewards.insert(rewards.end(), earned.begin(), earned.end());
    smallest = std::min(smallest, std::accumulate(earned.begin(), earned.end(), 0.0));
    logs.clear();
    earned.clear();
  }
  running_reward_ = 0.05 * smallest + 0.95 * running_reward_;

  // Over the rewards of all observers in a row, as the tutorial does it.
  std::vector<double> returns(rewards.size());
  double sum = 0;
  for (size_t i = rewards.size(); i-- > 0;) returns[i] = sum = rewards[i] + options_.gamma * sum;
  torch::Tensor weights = torch::tensor(returns, torch::kFloat);
  weights = (weights - weights.mean()) / (weights.std() + std::numeric_limits<float>::epsilon());
  const torch::Tensor loss = (-torch::cat(probabilities) * weights).sum();
  learning_->optimizer.zero_grad();
  loss.backward();
  learning_->optimizer.step();
  return smallest;
}

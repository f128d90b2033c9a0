// The options and the state of a distributed optimizer.
// SPDX-License-Identifier: BSD-3-Clause
#include "optim/ask_owners.h"
#include "optim/optimizer_driver.h"

namespace weft::optim {

std::vector<Record> OptimizerDriver::write_options() const {
  const auto& groups = options_->param_groups();
  if (groups.size() != group_sizes_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} was made with {} parameter groups and now has {}", name_of(kind_),
                            group_sizes_.size(), groups.size()));
  }
  std::vector<Record> options;
  for (const auto& group : groups) options.push_back(kind_.write(group.options()));
  return options;
}

std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> OptimizerDriver::read_options(
    const std::vector<Record>& options) const {
  if (options.size() != group_sizes_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("options of {} groups for the {} of {}", options.size(),
                            group_sizes_.size(), name_of(kind_)));
  }
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> read;
  for (const Record& each : options) {
    read.push_back(kind_.read_options(each));
    check_argument(name_of(kind_), [&] { kind_.make({}, *read.back()); });
  }
  return read;
}

void OptimizerDriver::on_loaded(const std::vector<Record>& options) {
  const base::MutexLock one_at_a_time(stepping_);
  take_loaded(options);
}

void OptimizerDriver::take_loaded(const std::vector<Record>& options) {
  auto read = read_options(options);
  auto& groups = options_->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) groups.at(i).set_options(std::move(read[i]));
  unfinished_.reset();
}

OptimizerState OptimizerDriver::state() const {
  const base::MutexLock one_at_a_time(stepping_);
  auto answers = ask_all<&OwnerOptimizer::state>();
  throw_failures("state", answers);
  std::vector<OwnerOptimizer::State> parts;
  for (auto& answer : answers) parts.push_back(std::move(*answer.value));
  return join_parts(parts);
}

OptimizerState OptimizerDriver::join_parts(const std::vector<OwnerOptimizer::State>& parts) const {
  OptimizerState whole{name_of(kind_), {}};
  const std::vector<Record> options = write_options();
  for (size_t i = 0; i < group_sizes_.size(); ++i) {
    whole.groups.push_back({options[i], {}});
    whole.groups[i].parameters.resize(group_sizes_[i]);
  }
  for (size_t o = 0; o < owners_.size(); ++o) {
    for (size_t i = 0; i < group_sizes_.size(); ++i) {
      for (size_t j = 0; j < owners_[o].places[i].size(); ++j) {
        whole.groups[i].parameters[owners_[o].places[i][j].index] = parts[o].at(i).at(j);
      }
    }
  }
  return whole;
}

std::vector<OwnerOptimizer::State> OptimizerDriver::split_by_owner(
    const OptimizerState& state) const {
  if (state.kind != name_of(kind_)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the state of {} given to {}", state.kind, name_of(kind_)));
  }
  if (state.groups.size() != group_sizes_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("state of {} groups given to an optimizer of {}", state.groups.size(),
                            group_sizes_.size()));
  }
  for (size_t i = 0; i < group_sizes_.size(); ++i) {
    if (state.groups[i].parameters.size() == group_sizes_[i]) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("state of {} parameters for the {} of group {}",
                            state.groups[i].parameters.size(), group_sizes_[i], i));
  }
  std::vector<OwnerOptimizer::State> parts;
  for (const Owner& owner : owners_) {
    OwnerOptimizer::State& part = parts.emplace_back();
    for (size_t i = 0; i < group_sizes_.size(); ++i) {
      part.emplace_back();
      for (const Owner::Place& place : owner.places[i]) {
        part.back().push_back(state.groups[i].parameters[place.index]);
      }
    }
  }
  return parts;
}

void OptimizerDriver::load_state(const OptimizerState& state) {
  const std::vector<OwnerOptimizer::State> parts = split_by_owner(state);
  std::vector<Record> options;
  for (const auto& group : state.groups) options.push_back(group.options);
  (void)read_options(options);
  const base::MutexLock one_at_a_time(stepping_);
  // All owners check the state before any of them changes anything.
  throw_failures("load_state",
                 ask_owners<&OwnerOptimizer::check_state>(TimeLimit(std::nullopt), [&](size_t i) {
                   return std::make_tuple(OwnerOptimizer::outlined(parts[i]));
                 }));
  throw_failures("load_state",
                 ask_owners<&OwnerOptimizer::load_state>(
                     TimeLimit(std::nullopt), [&](size_t i) { return std::tie(parts[i]); }));
  take_loaded(options);
}

}  // namespace weft::optim

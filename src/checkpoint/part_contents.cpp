// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/part_contents.h"

#include <cstdlib>
#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <fmt/format.h>

#include "nn/module_state.h"

namespace weft::checkpoint {

namespace {

constexpr char kGenerator[] = "generator";
constexpr char kValue[] = "value";
constexpr char kState[] = "state.";
constexpr char kSizes[] = "sizes";

// A copy in the memory of the CPU.
at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor generator_state() {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

[[noreturn]] void refuse(const std::string& item, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("\"{}\" {}", item, why));
}

// --- the state that an optimizer has for one parameter ------------------------------------------

Entry entry_of(const std::string& item, size_t group, size_t index,
               const optim::OptimizerState::Parameter& parameter) {
  Entry entry{item, fmt::format("{}.{}", group, index), {}};
  entry.values[kSizes] = at::tensor(parameter.sizes, at::kLong);
  if (!parameter.state) return entry;
  for (const auto& [name, value] : *parameter.state) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    entry.values[kState + name] = tensor ? RecordValue(copy_of(*tensor)) : value;
  }
  return entry;
}

optim::OptimizerState::Parameter parameter_of(const Entry& entry) {
  optim::OptimizerState::Parameter parameter;
  for (const auto& [name, value] : entry.values) {
    if (name.starts_with(kState)) {
      if (!parameter.state) parameter.state.emplace();
      parameter.state->emplace(name.substr(sizeof kState - 1), value);
    } else if (const auto* sizes = std::get_if<at::Tensor>(&value);
               sizes && name == kSizes && sizes->defined() && sizes->dim() == 1 &&
               sizes->scalar_type() == at::kLong) {
      const at::Tensor numbers = sizes->contiguous();
      const auto* first = numbers.data_ptr<int64_t>();
      parameter.sizes.assign(first, first + numbers.numel());
    }
  }
  return parameter;
}

}  // namespace

// --- writing -----------------------------------------------------------------------------------

void add_generator(std::vector<Entry>& entries) {
  entries.push_back({"", kGenerator, {{kValue, generator_state()}}});
}

void add_module(const std::string& item, const torch::nn::Module& module,
                std::vector<Entry>& entries) {
  entries.push_back({item, "", {}});
  for (const auto& [name, tensor] : nn::view_state(module)) {
    entries.push_back({item, name, {{kValue, copy_of(tensor)}}});
  }
}

void add_optimizer(const std::string& item, const optim::OwnerOptimizer& optimizer,
                   std::vector<Entry>& entries) {
  entries.push_back({item, "", {}});
  const auto state = optimizer.view_state();
  for (size_t i = 0; i < state.size(); ++i) {
    for (size_t j = 0; j < state[i].size(); ++j) {
      entries.push_back(entry_of(item, i, j, state[i][j]));
    }
  }
}

// --- reading -----------------------------------------------------------------------------------

Contents::Contents(std::vector<Entry> entries) {
  for (Entry& entry : entries) items_[entry.item].push_back(std::move(entry));
}

nn::ModuleState Contents::module(const std::string& item) const {
  nn::ModuleState state;
  for (const Entry& entry : find(item)) {
    if (entry.name.empty()) continue;  // this entry only says that there is such an item
    auto value = entry.values.find(kValue);
    const bool fine = value != entry.values.end();
    const auto* tensor = fine ? std::get_if<at::Tensor>(&value->second) : nullptr;
    if (!tensor) refuse(item, "is not a module");
    state.emplace(entry.name, *tensor);
  }
  return state;
}

optim::OwnerOptimizer::State Contents::optimizer(const std::string& item, size_t groups) const {
  optim::OwnerOptimizer::State state(groups);
  for (const Entry& entry : find(item)) {
    if (entry.name.empty()) continue;
    // Entries are in the order in which they were written: by group, then by index.
    const size_t group = std::strtoull(entry.name.c_str(), nullptr, 10);
    if (group >= groups) refuse(item, fmt::format("has a parameter group {}", group));
    state[group].push_back(parameter_of(entry));
  }
  return state;
}

const at::Tensor& Contents::generator() const {
  for (const Entry& entry : rest()) {
    if (entry.name != kGenerator) continue;
    auto value = entry.values.find(kValue);
    const auto* state =
        value == entry.values.end() ? nullptr : std::get_if<at::Tensor>(&value->second);
    const at::Tensor now = generator_state();
    if (state && state->defined() && state->sizes() == now.sizes() &&
        state->scalar_type() == now.scalar_type()) {
      return *state;
    }
  }
  throw Error(ErrorCode::kInvalidArgument, "there is no state of this libtorch's random generator");
}

const std::vector<Entry>& Contents::rest() const {
  static const std::vector<Entry> none;
  auto found = items_.find("");
  return found == items_.end() ? none : found->second;
}

const std::vector<Entry>& Contents::find(const std::string& item) const {
  auto found = items_.find(item);
  if (found == items_.end()) refuse(item, "is not in this checkpoint");
  return found->second;
}

void set_generator_state(const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace weft::checkpoint

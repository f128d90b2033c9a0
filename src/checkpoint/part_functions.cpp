// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/part_functions.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "checkpoint/manifest.h"
#include "nn/module_state.h"
#include "optim/stepping.h"

namespace weft::checkpoint {

namespace {

constexpr char kGenerator[] = "generator";
constexpr char kValue[] = "value";
constexpr char kState[] = "state.";
constexpr char kSizes[] = "sizes";

rpc::AgentCore& this_agent() { return *weft::detail::AgentAccess::core(current_agent()); }

std::string own_part(const PartOrder& order) {
  return Folder(order.directory, order.number).part(current_agent().info().name, order.save);
}

at::Tensor generator_state() {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
void set_generator_state(const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// --- what an optimizer remembers of one parameter ----------------------------------------------

Entry entry_of(const std::string& item, size_t group, size_t index,
               const optim::OptimizerState::Parameter& parameter) {
  Entry entry{item, fmt::format("{}.{}", group, index), {}};
  entry.values[kSizes] = at::tensor(parameter.sizes, at::kLong);
  if (!parameter.state) return entry;
  for (const auto& [name, value] : *parameter.state) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    entry.values[kState + name] = tensor ? RecordValue(tensor->detach().cpu()) : value;
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

// --- reading -----------------------------------------------------------------------------------

/// A part that was read: what is in it by item.
class Contents {
 public:
  Contents(const std::string& part, const PartSeal& seal) {
    PartReader reader(part, seal);
    for (Entry entry; reader.next(entry);) items_[entry.item].push_back(std::move(entry));
  }

  nn::ModuleState module(const std::string& item) const {
    nn::ModuleState state;
    for (const Entry& entry : find(item)) {
      if (entry.name.empty()) continue;  // says that there is such an item
      auto value = entry.values.find(kValue);
      const bool fine = value != entry.values.end();
      const auto* tensor = fine ? std::get_if<at::Tensor>(&value->second) : nullptr;
      if (!tensor) refuse(item, "is not a module");
      state.emplace(entry.name, *tensor);
    }
    return state;
  }

  optim::OwnerOptimizer::State optimizer(const std::string& item, size_t groups) const {
    optim::OwnerOptimizer::State state(groups);
    for (const Entry& entry : find(item)) {
      if (entry.name.empty()) continue;
      // In the order in which they were written: by group, then by index.
      const size_t group = std::strtoull(entry.name.c_str(), nullptr, 10);
      if (group >= groups) refuse(item, fmt::format("has a parameter group {}", group));
      state[group].push_back(parameter_of(entry));
    }
    return state;
  }

  /// Of the worker itself, and of whoever saved.
  const std::vector<Entry>& rest() const {
    static const std::vector<Entry> none;
    auto found = items_.find("");
    return found == items_.end() ? none : found->second;
  }

 private:
  const std::vector<Entry>& find(const std::string& item) const {
    auto found = items_.find(item);
    if (found == items_.end()) refuse(item, "is not in this checkpoint");
    return found->second;
  }
  [[noreturn]] static void refuse(const std::string& item, const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("\"{}\" {}", item, why));
  }

  std::map<std::string, std::vector<Entry>> items_;
};

const at::Tensor& generator_in(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
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

void require_fit(const PartOrder& order, const Contents& contents) {
  (void)generator_in(contents.rest());
  for (const auto& [name, module] : order.modules) {
    nn::check_state(*module.local_value().module, contents.module(name));
  }
  for (const auto& [name, optimizer] : order.optimizers) {
    const optim::OwnerOptimizer& own = optimizer.local_value();
    if (const auto complaint = own.check_state(contents.optimizer(name, own.groups()))) {
      throw Error(static_cast<ErrorCode>(complaint.code),
                  fmt::format("\"{}\": {}", name, complaint.text));
    }
  }
}

}  // namespace

namespace {

// What an order is about, once it is there: to wait for it with a lock held could take for ever.
void wait_for_items(const PartOrder& order) {
  for (const auto& [name, module] : order.modules) (void)module.local_value();
  for (const auto& [name, optimizer] : order.optimizers) (void)optimizer.local_value();
}

void write_items(const PartOrder& order, PartWriter& writer) {
  for (const auto& [item, module] : order.modules) {
    writer.add({item, "", {}});
    for (const auto& [name, tensor] : nn::view_state(*module.local_value().module)) {
      writer.add({item, name, {{kValue, tensor.detach().cpu()}}});
    }
  }
  for (const auto& [item, optimizer] : order.optimizers) {
    writer.add({item, "", {}});
    const auto state = optimizer.local_value().view_state();
    for (size_t i = 0; i < state.size(); ++i) {
      for (size_t j = 0; j < state[i].size(); ++j) writer.add(entry_of(item, i, j, state[i][j]));
    }
  }
}

}  // namespace

PartReport write_part(PartOrder order) {
  PartReport report;
  report.complaint = rpc::complaint_of([&] {
    wait_for_items(order);
    make_directory(Folder(order.directory, order.number).path());
    PartWriter writer(own_part(order));
    for (const Entry& entry : order.entries) writer.add(entry);
    const auto alone = optim::Stepping::of(this_agent()).lock();
    writer.add({"", kGenerator, {{kValue, generator_state()}}});
    write_items(order, writer);
    report.seal = writer.commit();
  });
  return report;
}

rpc::Complaint check_part(PartOrder order, PartSeal seal) {
  return rpc::complaint_of([&] {
    wait_for_items(order);
    require_fit(order, Contents(own_part(order), seal));
  });
}

rpc::Complaint load_part(PartOrder order, PartSeal seal) {
  return rpc::complaint_of([&] {
    wait_for_items(order);
    const Contents contents(own_part(order), seal);
    require_fit(order, contents);
    {
      const auto alone = optim::Stepping::of(this_agent()).lock();
      for (const auto& [name, module] : order.modules) {
        nn::load_state(*module.local_value().module, contents.module(name));
      }
      set_generator_state(generator_in(contents.rest()));
    }
    for (const auto& [name, optimizer] : order.optimizers) {
      optim::OwnerOptimizer& own = optimizer.local_value();
      const auto complaint = own.load_state(contents.optimizer(name, own.groups()));
      if (complaint) throw Error(static_cast<ErrorCode>(complaint.code), complaint.text);
    }
  });
}

std::vector<Entry> read_entries(const std::string& part, const PartSeal& seal) {
  return Contents(part, seal).rest();
}

void keep_only(std::string directory, std::vector<uint64_t> numbers) {
  for (const uint64_t each : Folder::numbers(directory)) {
    const bool kept = std::find(numbers.begin(), numbers.end(), each) != numbers.end();
    if (!kept && !numbers.empty() && each < numbers.back()) Folder(directory, each).remove();
  }
}

void discard(std::string directory, uint64_t number, uint64_t save) {
  Folder(directory, number).discard(save);
}

}  // namespace weft::checkpoint

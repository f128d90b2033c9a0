// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/part_functions.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/disk.h"
#include "checkpoint/manifest.h"
#include "nn/module_state.h"
#include "optim/stepping.h"

namespace weft::checkpoint {

namespace {

rpc::AgentCore& this_agent() { return *weft::detail::AgentAccess::core(current_agent()); }

std::string own_part(const PartOrder& order) {
  return Folder(order.directory, order.number).part(current_agent().info().name, order.save);
}

// Waits until all modules and optimizers of the order are made. Waiting for them later, with
// Stepping locked, could block all steps for ever.
void wait_for_items(const PartOrder& order) {
  for (const auto& [name, module] : order.modules) (void)module.local_value();
  for (const auto& [name, optimizer] : order.optimizers) (void)optimizer.local_value();
}

// Copies of everything that an order asks for, as it is at one moment. They are made under the lock
// and written without it: steps wait for the copy, not for the disk.
std::vector<Entry> snapshot_of(const PartOrder& order) {
  std::vector<Entry> entries;
  const auto alone = optim::Stepping::of(this_agent()).lock();
  add_generator(entries);
  for (const auto& [item, module] : order.modules) {
    add_module(item, *module.local_value().module, entries);
  }
  for (const auto& [item, optimizer] : order.optimizers) {
    add_optimizer(item, optimizer.local_value(), entries);
  }
  return entries;
}

}  // namespace

PartReport write_part(PartOrder order) {
  PartReport report;
  report.complaint = rpc::complaint_of([&] {
    wait_for_items(order);
    make_directory(Folder(order.directory, order.number).path());
    PartWriter writer(own_part(order), Storage::of(this_agent()).disk());
    for (const Entry& entry : order.entries) writer.add(entry);
    // The exchange frees the memory of an entry as soon as it is written.
    for (Entry& entry : snapshot_of(order)) writer.add(std::exchange(entry, {}));
    report.seal = writer.commit();
  });
  return report;
}

ReadPart::ReadPart(PartOrder order, const PartSeal& seal)
    : order_(std::move(order)),
      contents_(read_entries(own_part(order_), seal, Storage::of(this_agent()).disk())) {}

void ReadPart::check() const {
  (void)contents_.generator();
  for (const auto& [name, module] : order_.modules) {
    nn::check_state(*module.local_value().module, contents_.module(name));
  }
  for (const auto& [name, optimizer] : order_.optimizers) {
    const optim::OwnerOptimizer& own = optimizer.local_value();
    if (const auto complaint = own.check_state(contents_.optimizer(name, own.groups()))) {
      throw Error(static_cast<ErrorCode>(complaint.code),
                  fmt::format("\"{}\": {}", name, complaint.text));
    }
  }
}

void ReadPart::load() const {
  check();
  {
    const auto alone = optim::Stepping::of(this_agent()).lock();
    for (const auto& [name, module] : order_.modules) {
      nn::load_state(*module.local_value().module, contents_.module(name));
    }
    set_generator_state(contents_.generator());
  }
  for (const auto& [name, optimizer] : order_.optimizers) {
    optim::OwnerOptimizer& own = optimizer.local_value();
    const auto complaint = own.load_state(contents_.optimizer(name, own.groups()));
    if (complaint) throw Error(static_cast<ErrorCode>(complaint.code), complaint.text);
  }
}

PartReading read_part(PartOrder order, PartSeal seal) {
  PartReading reading;
  reading.complaint = rpc::complaint_of([&] {
    wait_for_items(order);
    reading.part = RRef<ReadPart>(current_agent(), ReadPart(std::move(order), seal));
  });
  return reading;
}

rpc::Complaint check_part(RRef<ReadPart> part) {
  return rpc::complaint_of([&] { part.local_value().check(); });
}

rpc::Complaint load_part(RRef<ReadPart> part) {
  return rpc::complaint_of([&] { part.local_value().load(); });
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

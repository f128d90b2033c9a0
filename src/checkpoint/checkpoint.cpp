// SPDX-License-Identifier: BSD-3-Clause
#include "weft/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/mutex.h"
#include "checkpoint/manifest.h"
#include "checkpoint/part_functions.h"
#include "optim/optimizer_driver.h"

namespace weft::checkpoint {

namespace {

constexpr char kNotes[] = "notes";
constexpr char kKind[] = "kind ";        // followed by the name of an optimizer
constexpr char kOptions[] = "options ";  // followed by a group and the name of an optimizer
constexpr char kName[] = "name";
// How long removing old files may take. Files that are left are removed after a later save.
constexpr auto kRemoveTimeout = std::chrono::seconds(10);

// Autograd does not record the calls of a checkpoint.
struct Unrecorded {
  c10::AutoGradMode off{false};
};

/// Collects the failures of several workers that do something at the same time. The caller waits
/// for all of them, then throws the first failure.
class FirstFailure {
 public:
  template <typename F>
  void of(const F& f) {
    try {
      f();
    } catch (const Error& error) {
      if (!error_) error_ = error;
    }
  }
  void throw_if_any() const {
    if (error_) throw *error_;
  }

 private:
  std::optional<Error> error_;
};

}  // namespace

/// The modules and optimizers that belong into the checkpoints of a directory, by worker.
class Plan {
 public:
  Plan(Agent& agent, std::string directory, const Options& options)
      : agent_(agent), directory_(absolute(directory)), options_(options) {
    const base::MutexLock lock(mutex_);
    orders_[agent.info().name];  // this worker always has a part, for its random generator
  }

  void add(const std::string& name, const RRef<nn::HostedModule>& module) {
    const std::string& owner = module.owner().name;
    const base::MutexLock lock(mutex_);
    take_name(name);
    orders_[owner].modules.emplace_back(name, module);
  }
  void add(const std::string& name, std::shared_ptr<torch::nn::Module> module) {
    if (!module) throw Error(ErrorCode::kInvalidArgument, "\"" + name + "\" is no module");
    add(name, RRef<nn::HostedModule>(agent_, nn::HostedModule(std::move(module))));
  }
  void add(const std::string& name, optim::OptimizerDriver& optimizer) {
    const base::MutexLock lock(mutex_);
    take_name(name);
    optimizers_.emplace_back(name, &optimizer);
    for (const auto& owner : optimizer.owners()) {
      orders_[owner.info.name].optimizers.emplace_back(name, owner.optimizer);
    }
  }

  uint64_t save(const Record& notes);
  Loaded load(uint64_t number);
  std::vector<uint64_t> numbers() const { return Folder::complete_numbers(directory_); }

 private:
  void take_name(const std::string& name) WEFT_REQUIRES(mutex_) {
    if (name.empty()) throw Error(ErrorCode::kInvalidArgument, "a name must be non-empty");
    if (names_.insert(name).second) return;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("\"{}\" is in this checkpoint", name));
  }
  static std::string absolute(std::string directory) {
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
    if (directory.empty()) throw Error(ErrorCode::kInvalidArgument, "a checkpoint needs a path");
    if (directory.front() == '/') return directory;
    // Other workers may have another current directory.
    const std::unique_ptr<char, void (*)(void*)> here(::getcwd(nullptr, 0), &std::free);
    if (!here) throw_storage("find the current directory for", directory);
    return std::string(here.get()) + "/" + directory;
  }
  Destination to(const std::string& worker) const { return {worker, options_.timeout}; }
  const std::string& own_name() const { return agent_.info().name; }
  PartOrder order_for(const std::string& worker, uint64_t number, uint64_t save) const
      WEFT_REQUIRES(mutex_);
  std::vector<Entry> own_entries(const Record& notes) const WEFT_REQUIRES(mutex_);
  uint64_t make_number() WEFT_REQUIRES(mutex_);
  Manifest write_parts(uint64_t number, uint64_t save, const Record& notes) WEFT_REQUIRES(mutex_);
  template <auto F, typename... Args>
  void have_removed(const Args&... args) WEFT_REQUIRES(mutex_);
  void remove_old() WEFT_REQUIRES(mutex_);
  PartSeal seal_of(const Manifest& manifest, const std::string& worker, uint64_t number) const;
  using Parts = std::map<std::string, RRef<ReadPart>>;  // by worker
  Parts have_read(const Manifest& manifest, uint64_t number) WEFT_REQUIRES(mutex_);
  template <auto F>
  void have_parts(const Parts& parts);
  struct OwnEntries {
    Record notes;
    std::map<std::string, Record> others;
    explicit OwnEntries(const std::vector<Entry>& entries);
    std::vector<Record> options(const std::string& optimizer) const;
    void check_kind(const std::string& optimizer, const std::string& kind) const;
  };

  Agent& agent_;
  const std::string directory_;
  const Options options_;
  base::Mutex mutex_;
  uint64_t last_number_ WEFT_GUARDED_BY(mutex_) = 0;
  std::set<std::string> names_ WEFT_GUARDED_BY(mutex_);
  std::map<std::string, PartOrder> orders_
      WEFT_GUARDED_BY(mutex_);  // by worker; without what order_for() adds
  std::vector<std::pair<std::string, optim::OptimizerDriver*>> optimizers_ WEFT_GUARDED_BY(mutex_);
};

// --- saving ------------------------------------------------------------------------------------

namespace {

uint64_t random_id() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// Throws if an entry cannot be encoded.
void check_encodable(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    Encoder out;
    Codec<Entry>::encode(out, entry);
  }
}

}  // namespace

uint64_t Plan::save(const Record& notes) {
  const Unrecorded calls;
  const base::MutexLock one_at_a_time(mutex_);
  check_encodable(own_entries(notes));
  const uint64_t number = make_number(), save = random_id();
  try {
    Folder(directory_, number).write(write_parts(number, save, notes));  // now it is complete
  } catch (...) {
    // A worker that was too slow may still be writing. No later attempt uses the same file name.
    have_removed<discard>(directory_, number, save);
    throw;
  }
  remove_old();
  return number;
}

// A number that no attempt has had: a worker may still be writing for an earlier attempt.
uint64_t Plan::make_number() {
  const auto existing = Folder::numbers(directory_);
  if (!existing.empty()) last_number_ = std::max(last_number_, existing.back());
  make_directory(Folder(directory_, ++last_number_).path());
  return last_number_;
}

PartOrder Plan::order_for(const std::string& worker, uint64_t number, uint64_t save) const {
  PartOrder order = orders_.at(worker);
  order.directory = directory_;
  order.number = number;
  order.save = save;
  return order;
}

std::vector<Entry> Plan::own_entries(const Record& notes) const {
  std::vector<Entry> entries{{"", kNotes, notes}};
  for (const auto& [name, optimizer] : optimizers_) {
    entries.push_back({"", kKind + name, {{kName, name_of(optimizer->kind())}}});
    const auto groups = optimizer->write_options();
    for (size_t i = 0; i < groups.size(); ++i) {
      entries.push_back({"", fmt::format("{}{} {}", kOptions, i, name), groups[i]});
    }
  }
  return entries;
}

Manifest Plan::write_parts(uint64_t number, uint64_t save, const Record& notes) {
  std::vector<std::pair<std::string, Future<PartReport>>> pending;
  FirstFailure failure;
  for (const auto& [worker, items] : orders_) {
    PartOrder order = order_for(worker, number, save);
    if (worker == own_name()) order.entries = own_entries(notes);
    failure.of([&, &name = worker] {
      pending.emplace_back(name, agent_.async<write_part>(to(name), std::move(order)));
    });
  }
  Manifest manifest{save, {}};
  for (const auto& [worker, future] : pending) {
    failure.of([&, &name = worker, &report_of = future] {
      const PartReport report = report_of.wait();
      if (report.complaint) throw report.complaint.error(name);
      manifest.parts[name] = report.seal;
    });
  }
  failure.throw_if_any();
  return manifest;
}

// Calls F, which removes files, on all workers. Ignores failures: files that are left are removed
// after a later save.
template <auto F, typename... Args>
void Plan::have_removed(const Args&... args) {
  std::vector<Future<void>> pending;
  for (const auto& [worker, items] : orders_) {
    try {
      pending.push_back(agent_.async<F>({worker, kRemoveTimeout}, args...));
    } catch (const Error&) {
    }
  }
  for (const auto& future : pending) future.wait_for(kRemoveTimeout);
}

// Failures are only logged: the new checkpoint is complete, so save() succeeds.
void Plan::remove_old() {
  try {
    std::vector<uint64_t> kept = numbers();
    const size_t keep = std::max<size_t>(options_.keep, 1);
    if (kept.size() > keep) kept.erase(kept.begin(), kept.end() - static_cast<ptrdiff_t>(keep));
    keep_only(directory_, kept);  // here first: this worker has the manifests
    have_removed<keep_only>(directory_, kept);
  } catch (const Error& error) {
    base::log(LogLevel::kWarning, own_name(), "old checkpoints were not removed: {}",
              error.message());
  }
}

// --- loading -----------------------------------------------------------------------------------

PartSeal Plan::seal_of(const Manifest& manifest, const std::string& worker, uint64_t number) const {
  auto found = manifest.parts.find(worker);
  if (found != manifest.parts.end()) return found->second;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("checkpoint {} in {} has no part of worker {}", number, directory_, worker));
}

// Has every worker read its part.
Plan::Parts Plan::have_read(const Manifest& manifest, uint64_t number) {
  std::vector<std::pair<std::string, Future<PartReading>>> pending;
  FirstFailure failure;
  for (const auto& [worker, items] : orders_) {
    const PartOrder order = order_for(worker, number, manifest.save);
    failure.of([&, &name = worker] {
      pending.emplace_back(
          name, agent_.async<read_part>(to(name), order, seal_of(manifest, name, number)));
    });
  }
  Parts parts;
  for (const auto& [worker, future] : pending) {
    failure.of([&, &name = worker, &reading_of = future] {
      const PartReading reading = reading_of.wait();
      if (reading.complaint) throw reading.complaint.error(name);
      parts.emplace(name, reading.part);
    });
  }
  failure.throw_if_any();
  return parts;
}

// Calls F with its part on every worker.
template <auto F>
void Plan::have_parts(const Parts& parts) {
  std::vector<std::pair<std::string, Future<rpc::Complaint>>> pending;
  FirstFailure failure;
  for (const auto& [worker, part] : parts) {
    failure.of([&, &name = worker, &its = part] {
      pending.emplace_back(name, agent_.async<F>(to(name), its));
    });
  }
  for (const auto& [worker, future] : pending) {
    failure.of([&, &name = worker, &answer = future] {
      if (const auto complaint = answer.wait()) throw complaint.error(name);
    });
  }
  failure.throw_if_any();
}

Loaded Plan::load(uint64_t number) {
  const Unrecorded calls;
  const base::MutexLock one_at_a_time(mutex_);
  const Folder folder(directory_, number);
  if (!folder.is_complete()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("there is no checkpoint {} in {}", number, directory_));
  }
  const Parts parts = have_read(folder.read(), number);
  const OwnEntries own(parts.at(own_name()).local_value().rest());
  for (const auto& [name, optimizer] : optimizers_) {
    own.check_kind(name, name_of(optimizer->kind()));
    (void)optimizer->read_options(own.options(name));
  }
  have_parts<check_part>(parts);
  try {
    have_parts<load_part>(parts);
  } catch (const Error& error) {
    throw Error(error.code(), error.message() + "; others may have loaded their parts");
  }
  for (const auto& [name, optimizer] : optimizers_) optimizer->on_loaded(own.options(name));
  return {number, own.notes};
}

Plan::OwnEntries::OwnEntries(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    (entry.name == kNotes ? notes : others[entry.name]) = entry.values;
  }
}

void Plan::OwnEntries::check_kind(const std::string& optimizer, const std::string& kind) const {
  auto found = others.find(kKind + optimizer);
  if (found == others.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is no optimizer in this checkpoint", optimizer));
  }
  auto name = found->second.find(kName);
  const auto* saved =
      name == found->second.end() ? nullptr : std::get_if<std::string>(&name->second);
  const bool same = saved && *saved == kind;
  if (!same) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is not a {} in this checkpoint", optimizer, kind));
  }
}

std::vector<Record> Plan::OwnEntries::options(const std::string& optimizer) const {
  std::vector<Record> groups;
  for (size_t i = 0;; ++i) {
    auto found = others.find(fmt::format("{}{} {}", kOptions, i, optimizer));
    if (found == others.end()) return groups;
    groups.push_back(found->second);
  }
}

// --- the facade --------------------------------------------------------------------------------

Checkpoint::Checkpoint(std::string directory, const Options& options)
    : Checkpoint(current_agent(), std::move(directory), options) {}
Checkpoint::Checkpoint(Agent& agent, std::string directory, const Options& options)
    : plan_(std::make_unique<Plan>(agent, std::move(directory), options)) {}
Checkpoint::~Checkpoint() = default;

void Checkpoint::add(const std::string& name, const nn::AnyRemoteModule& module) {
  plan_->add(name, module.hosted());
}
void Checkpoint::add(const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  plan_->add(name, std::move(module));
}
void Checkpoint::add(const std::string& name, optim::AnyDistributedOptimizer& optimizer) {
  plan_->add(name, optim::OptimizerDriver::of(optimizer));
}

uint64_t Checkpoint::save(const Record& notes) { return plan_->save(notes); }
std::optional<Loaded> Checkpoint::load() {
  const auto all = numbers();
  return all.empty() ? std::nullopt : std::optional(load(all.back()));
}
Loaded Checkpoint::load(uint64_t number) { return plan_->load(number); }
std::vector<uint64_t> Checkpoint::numbers() const { return plan_->numbers(); }

}  // namespace weft::checkpoint

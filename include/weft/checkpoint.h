// Checkpoints of a model and its optimizers that live on several workers.
//
//   weft::checkpoint::Checkpoint checkpoint("/data/run7");
//   checkpoint.add("embedding", table);      // a remote module
//   checkpoint.add("decoder", decoder);      // one of this worker's own
//   checkpoint.add("optimizer", optimizer);
//   if (auto found = checkpoint.load()) epoch = std::get<int64_t>(found->notes.at("epoch"));
//   ...
//   checkpoint.save({{"epoch", epoch}});
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/pimpl.h>

#include "weft/export.h"
#include "weft/nn.h"
#include "weft/optim.h"
#include "weft/record.h"

namespace weft::checkpoint {

struct Options {
  /// Older checkpoints are removed when a new one is complete.
  size_t keep = 2;
  /// For each worker's part.
  Timeout timeout = std::chrono::minutes(10);
};

struct Loaded {
  uint64_t number = 0;
  Record notes;
};

class Plan;

/// A directory of numbered checkpoints, and the modules and optimizers that belong into them. Every
/// worker writes its own part to this path, on its own file system or a shared one. A checkpoint
/// counts from the moment its manifest, written last by this worker, is in place: if a worker dies
/// before, the previous checkpoint is as it was. A checkpoint also has the state of each worker's
/// CPU random generator, so that a run continues as if it had not stopped. One worker saves to a
/// directory at a time.
class WEFT_API Checkpoint {
 public:
  explicit Checkpoint(std::string directory, const Options& options = {});
  Checkpoint(Agent& agent, std::string directory, const Options& options = {});
  ~Checkpoint();

  /// The user chooses names, each once. A module or optimizer that is added must outlive this
  /// object. Throws kInvalidArgument for a name that is taken.
  void add(const std::string& name, const nn::AnyRemoteModule& module);
  void add(const std::string& name, std::shared_ptr<torch::nn::Module> module);
  template <typename Contained>
  void add(const std::string& name, const torch::nn::ModuleHolder<Contained>& module) {
    add(name, std::static_pointer_cast<torch::nn::Module>(module.ptr()));
  }
  void add(const std::string& name, optim::AnyDistributedOptimizer& optimizer);

  /// Returns the new checkpoint's number; not while a step runs. Every worker copies its part in
  /// host memory before it writes it. Throws kStorageFailed, naming worker and file, if something
  /// cannot be written, and leaves the previous checkpoint.
  uint64_t save(const Record& notes = {});

  /// Puts everything back as it was saved; nothing if there is no checkpoint. All parts are read,
  /// once, and checked, by all workers, before anything is changed. Throws kStorageFailed if one is
  /// missing or damaged, kInvalidArgument if it is of another model, or what a call fails with.
  std::optional<Loaded> load();
  /// Loads the checkpoint of this number. Throws kInvalidArgument if there is none.
  Loaded load(uint64_t number);
  /// The numbers of all complete checkpoints, ascending; load() takes the last one.
  std::vector<uint64_t> numbers() const;

 private:
  std::unique_ptr<Plan> plan_;
};

}  // namespace weft::checkpoint

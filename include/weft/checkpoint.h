// Checkpoints of a model and its optimizers that live on several workers.
//
//   weft::checkpoint::Checkpoint checkpoint("/data/run7");
//   checkpoint.add("embedding", table);      // a remote module
//   checkpoint.add("decoder", decoder);      // a module on this worker
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
  /// How many checkpoints are kept. Older ones are removed when a new one is complete.
  size_t keep = 2;
  /// How long each call to a worker may take. save() makes one call to each worker, load() makes
  /// three.
  Timeout timeout = std::chrono::minutes(10);
};

struct Loaded {
  uint64_t number = 0;
  Record notes;
};

class Plan;

/// A directory of numbered checkpoints, and the modules and optimizers that are saved there. Every
/// worker writes its own part to this path, on its own file system or a shared one. This worker
/// writes the manifest last, and a checkpoint counts from the moment the manifest is in place: if a
/// worker dies before that, the previous checkpoint is still valid. The state of each worker's CPU
/// random generator is saved too, so that a run continues as if it had not stopped. Only one worker
/// at a time may save to a directory.
class WEFT_API Checkpoint {
 public:
  explicit Checkpoint(std::string directory, const Options& options = {});
  Checkpoint(Agent& agent, std::string directory, const Options& options = {});
  ~Checkpoint();

  /// The program chooses the names. Throws kInvalidArgument if the name is empty or taken. This
  /// object keeps the modules that are added alive; an optimizer that is added must outlive it.
  void add(const std::string& name, const nn::AnyRemoteModule& module);
  void add(const std::string& name, std::shared_ptr<torch::nn::Module> module);
  template <typename Contained>
  void add(const std::string& name, const torch::nn::ModuleHolder<Contained>& module) {
    add(name, std::static_pointer_cast<torch::nn::Module>(module.ptr()));
  }
  void add(const std::string& name, optim::AnyDistributedOptimizer& optimizer);

  /// Saves a new checkpoint and returns its number. The program must not step an optimizer
  /// meanwhile. Every worker copies its part in the memory of the CPU before it writes it. Throws
  /// kStorageFailed, naming worker and file, if something cannot be written; the previous
  /// checkpoint is then still the last one.
  uint64_t save(const Record& notes = {});

  /// Loads the last complete checkpoint; returns nothing if there is none. All workers read and
  /// check their parts before any of them changes anything. Throws kStorageFailed if a part is
  /// missing or damaged, kInvalidArgument if it is of another model, or the error of a call that
  /// failed.
  std::optional<Loaded> load();
  /// Loads this checkpoint. Throws kInvalidArgument if there is none of this number.
  Loaded load(uint64_t number);
  /// The numbers of all complete checkpoints, ascending.
  std::vector<uint64_t> numbers() const;

 private:
  std::unique_ptr<Plan> plan_;
};

}  // namespace weft::checkpoint

// The contents of a worker's part of a checkpoint: the state of its modules and optimizers, as
// entries.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/part_file.h"
#include "optim/owner_optimizer.h"
#include "weft/nn.h"

namespace weft::checkpoint {

// These append entries with copies of all tensors. The caller must have locked Stepping.
void add_generator(std::vector<Entry>& entries);
void add_module(const std::string& item, const torch::nn::Module& module,
                std::vector<Entry>& entries);
void add_optimizer(const std::string& item, const optim::OwnerOptimizer& optimizer,
                   std::vector<Entry>& entries);

/// The entries of a part by item. All methods but rest() throw kInvalidArgument if the part has no
/// such item.
class Contents {
 public:
  explicit Contents(std::vector<Entry> entries);

  nn::ModuleState module(const std::string& item) const;
  optim::OwnerOptimizer::State optimizer(const std::string& item, size_t groups) const;
  /// The state of the worker's random generator. Throws kInvalidArgument if this libtorch has
  /// another kind of generator.
  const at::Tensor& generator() const;
  /// The entries that belong to no module or optimizer.
  const std::vector<Entry>& rest() const;

 private:
  const std::vector<Entry>& find(const std::string& item) const;

  std::map<std::string, std::vector<Entry>> items_;
};

void set_generator_state(const at::Tensor& state);

}  // namespace weft::checkpoint

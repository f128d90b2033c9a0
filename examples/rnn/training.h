// The training loop, for a model in one process and for one on two workers.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <functional>

#include "task.h"

struct TrainingOptions {
  int64_t epochs = 10;
  int64_t iterations = 0;  // not zero: so many, however many epochs that makes
  int64_t log_interval = 50;
  bool print_losses = false;
};

/// One iteration, from the batch to the new weights; returns the loss.
using Iteration = std::function<at::Tensor(const Batch& batch, Hidden& hidden)>;

void train(const Task& task, const TrainingOptions& options, const Iteration& iterate);

// What the model is trained on, and how large it is for that.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model.h"

struct Batch {
  at::Tensor tokens;
  at::Tensor target;
};

struct Task {
  enum class Report : uint8_t {
    kMeanLoss,    // of every epoch
    kPerplexity,  // of every log interval
  };

  ModelSizes sizes;
  Hidden hidden;               // before the first batch
  std::vector<Batch> batches;  // of one epoch
  Report report = Report::kMeanLoss;
  int64_t classes = 1;  // the dimension of the model's output that the target chooses from

  at::Tensor loss(const at::Tensor& output, const at::Tensor& target) const;
};

/// The tutorial's: random numbers, as its data is memory that nobody wrote, and, as there, a target
/// among the positions in the batch and not among the tokens.
Task tutorial_task(int64_t batches, double dropout, uint64_t seed);

/// Predicts the next byte of a text, cut into parallel streams.
Task text_task(const std::string& text, double dropout);

// Learning rates that change over the course of a training, for any torch::optim::Optimizer.
//
//   weft::optim::WarmupCosineLR schedule(optimizer, 100, 10'000);
//   for (...) {
//     optimizer.step();
//     schedule.step();
//   }
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "weft/export.h"

namespace weft::optim {

/// Computes each group's rate from its base, which is the rate it had at construction, and from the
/// number of steps since then. A rate that the program sets in between is overwritten. The
/// constructor sets the rate of step 0, so a second scheduler on the same optimizer takes that for
/// its base. The optimizer must outlive the scheduler and keep its groups. Constructors throw
/// kInvalidArgument for numbers out of range.
class WEFT_API ClosedFormLR : public torch::optim::LRScheduler {
 public:
  /// Goes on as if step() had been called so many times, for example after a checkpoint was loaded.
  /// Make the scheduler before Checkpoint::load(): then its base is the rate the program gave, not
  /// the one that was saved.
  void resume_after(unsigned steps);

 protected:
  explicit ClosedFormLR(torch::optim::Optimizer& optimizer);

 private:
  virtual double lr_after(unsigned steps, double base) const = 0;
  std::vector<double> get_lrs() final;

  const std::vector<double> bases_;
};

/// Half a cosine from the base down to `min_lr` in `steps` steps; there it stays.
class WEFT_API CosineAnnealingLR final : public ClosedFormLR {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, unsigned steps, double min_lr = 0);

 private:
  double lr_after(unsigned steps, double base) const override;

  const unsigned steps_;
  const double min_lr_;
};

/// A straight line from `start_factor` times the base up to the base in `steps` steps; there it
/// stays.
class WEFT_API WarmupLR final : public ClosedFormLR {
 public:
  WarmupLR(torch::optim::Optimizer& optimizer, unsigned steps, double start_factor = 1.0 / 3);

 private:
  double lr_after(unsigned steps, double base) const override;

  const unsigned steps_;
  const double start_factor_;
};

/// WarmupLR for `warmup_steps`, then CosineAnnealingLR for the rest of `total_steps`.
class WEFT_API WarmupCosineLR final : public ClosedFormLR {
 public:
  WarmupCosineLR(torch::optim::Optimizer& optimizer, unsigned warmup_steps, unsigned total_steps,
                 double min_lr = 0, double start_factor = 1.0 / 3);

 private:
  double lr_after(unsigned steps, double base) const override;

  const unsigned warmup_steps_;
  const unsigned total_steps_;
  const double min_lr_;
  const double start_factor_;
};

}  // namespace weft::optim

// SPDX-License-Identifier: BSD-3-Clause
#include "weft/optim/schedulers.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::optim {
namespace {

void require(bool holds, const char* what, double value) {
  if (!holds) throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, value));
}

void check_steps(unsigned steps) {
  require(steps > 0, "a schedule needs at least one step", steps);
}

void check_min_lr(double min_lr) {
  require(std::isfinite(min_lr) && min_lr >= 0, "min_lr must not be negative", min_lr);
}

void check_start_factor(double factor) {
  require(factor >= 0 && factor <= 1, "start_factor must be from 0 to 1", factor);
}

// Returns the rates at both ends without computing them: a result could differ in the last bit.
double cosine(unsigned step, unsigned steps, double base, double min_lr) {
  if (step == 0) return base;
  if (step >= steps) return min_lr;
  return min_lr + (base - min_lr) * (1 + std::cos(std::numbers::pi * step / steps)) / 2;
}

double warmup(unsigned step, unsigned steps, double base, double start_factor) {
  if (step >= steps) return base;
  return base * (start_factor + (1 - start_factor) * step / steps);
}

}  // namespace

ClosedFormLR::ClosedFormLR(torch::optim::Optimizer& optimizer)
    : LRScheduler(optimizer), bases_(get_current_lrs()) {}

// step() calls this and then counts. The constructors of the final classes call step() once, so the
// count is here the number of steps that the program has made, including this one.
std::vector<double> ClosedFormLR::get_lrs() {
  std::vector<double> lrs;
  for (const double base : bases_) lrs.push_back(lr_after(step_count_, base));
  return lrs;
}

void ClosedFormLR::resume_after(unsigned steps) {
  step_count_ = steps;
  step();
}

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer, unsigned steps,
                                     double min_lr)
    : ClosedFormLR(optimizer), steps_(steps), min_lr_(min_lr) {
  check_steps(steps);
  check_min_lr(min_lr);
  step();
}

double CosineAnnealingLR::lr_after(unsigned steps, double base) const {
  return cosine(steps, steps_, base, min_lr_);
}

WarmupLR::WarmupLR(torch::optim::Optimizer& optimizer, unsigned steps, double start_factor)
    : ClosedFormLR(optimizer), steps_(steps), start_factor_(start_factor) {
  check_steps(steps);
  check_start_factor(start_factor);
  step();
}

double WarmupLR::lr_after(unsigned steps, double base) const {
  return warmup(steps, steps_, base, start_factor_);
}

WarmupCosineLR::WarmupCosineLR(torch::optim::Optimizer& optimizer, unsigned warmup_steps,
                               unsigned total_steps, double min_lr, double start_factor)
    : ClosedFormLR(optimizer),
      warmup_steps_(warmup_steps),
      total_steps_(total_steps),
      min_lr_(min_lr),
      start_factor_(start_factor) {
  check_steps(warmup_steps);
  require(total_steps > warmup_steps, "total_steps must be more than those of the warmup",
          total_steps);
  check_min_lr(min_lr);
  check_start_factor(start_factor);
  step();
}

double WarmupCosineLR::lr_after(unsigned steps, double base) const {
  if (steps < warmup_steps_) return warmup(steps, warmup_steps_, base, start_factor_);
  return cosine(steps - warmup_steps_, total_steps_ - warmup_steps_, base, min_lr_);
}

}  // namespace weft::optim

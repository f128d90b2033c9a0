// SPDX-License-Identifier: BSD-3-Clause
#include "training.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <utility>

namespace {

using Clock = std::chrono::steady_clock;

class Progress {
 public:
  Progress(const Task& task, const TrainingOptions& options)
      : report_(task.report),
        interval_(report_ == Task::Report::kMeanLoss ? task.batches.size() : options.log_interval),
        print_losses_(options.print_losses) {}

  void on_iteration(double loss) {
    if (iterations_++ == 0) start_ = Clock::now();  // the first one starts much up
    if (print_losses_) std::printf("loss: %.9g\n", loss);
    sum_ += loss;
    if (iterations_ % interval_ != 0) return;
    const double mean = std::exchange(sum_, 0) / static_cast<double>(interval_);
    if (report_ == Task::Report::kPerplexity) {
      std::printf("iteration %zu\tperplexity: %.2f\t%.1f s\n", iterations_, std::exp(mean),
                  seconds());
    } else {
      std::printf("Training epoch %zu\tmean loss: %.6f\n", iterations_ / interval_ - 1, mean);
    }
    std::fflush(stdout);
  }
  void finish() const {
    if (iterations_ < 2) return;
    std::printf("iterations per second: %.1f\n", static_cast<double>(iterations_ - 1) / seconds());
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  const Task::Report report_;
  const size_t interval_;
  const bool print_losses_;
  Clock::time_point start_;
  size_t iterations_ = 0;
  double sum_ = 0;
};

}  // namespace

void train(const Task& task, const TrainingOptions& options, const Iteration& iterate) {
  const size_t batches = task.batches.size();
  const size_t count = options.iterations > 0 ? options.iterations : options.epochs * batches;
  Hidden hidden = task.hidden;
  Progress progress(task, options);
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor loss = iterate(task.batches[i % batches], hidden);
    // The next batch goes on from this state, its gradients do not go back beyond it.
    hidden = {std::get<0>(hidden).detach(), std::get<1>(hidden).detach()};
    progress.on_iteration(loss.item<double>());
  }
  progress.finish();
}

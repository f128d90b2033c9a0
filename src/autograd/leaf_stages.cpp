// SPDX-License-Identifier: BSD-3-Clause
#include "autograd/leaf_stages.h"

#include <algorithm>
#include <utility>

#include "autograd/without_memory.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/room.h"

namespace weft::autograd {

namespace {

// Gathers the results of all stages of a pass.
struct Gathered {
  using Then = std::function<void(LeafStage::Result)>;
  Gathered(size_t stages, Then what) : then(std::move(what)), missing(stages) {}

  const Then then;
  base::Mutex mutex;
  size_t missing WEFT_GUARDED_BY(mutex);
  LeafStage::Result all WEFT_GUARDED_BY(mutex);
};

// Without memory for its result the stage is done nevertheless: the pass waits for it.
void on_stage_done(const std::shared_ptr<Gathered>& gathered, LeafStage::Result result) {
  LeafStage::Result everything;
  {
    const base::MutexLock lock(gathered->mutex);
    auto& all = gathered->all;
    try {
      base::make_room(all.gradients, all.gradients.size() + result.gradients.size());
      std::move(result.gradients.begin(), result.gradients.end(),
                std::back_inserter(all.gradients));
    } catch (const std::bad_alloc&) {
      if (!result.cause) result.cause = kOutOfMemory;
    }
    if (!all.cause) all.cause = std::move(result.cause);
    if (--gathered->missing > 0) return;
    everything = std::move(all);
  }
  gathered->then(std::move(everything));
}

}  // namespace

void LeafStages::add(const detail::Ref<LeafStage>& stage, const std::vector<at::Tensor>& leaves) {
  const base::MutexLock lock(mutex_);
  const bool is_new = std::none_of(stages_.begin(), stages_.end(),
                                   [&](const auto& each) { return each.get() == stage.get(); });
  if (!is_new) return;
  stages_.push_back(stage);
  for (const at::Tensor& leaf : leaves) by_leaf_[leaf.unsafeGetTensorImpl()] = stage;
}

bool LeafStages::empty() const {
  const base::MutexLock lock(mutex_);
  return stages_.empty();
}

detail::Ref<LeafStage> LeafStages::find(const at::Tensor& leaf) const {
  const base::MutexLock lock(mutex_);
  const auto found = by_leaf_.find(leaf.unsafeGetTensorImpl());
  return found == by_leaf_.end() ? detail::Ref<LeafStage>() : found->second;
}

void LeafStages::begin_pass() {
  const base::MutexLock lock(mutex_);
  in_pass_ = !stages_.empty();
}

void LeafStages::finish_pass(const LeafStage::Earlier& earlier,
                             std::function<void(LeafStage::Result)> then) {
  std::vector<detail::Ref<LeafStage>> stages;
  {
    const base::MutexLock lock(mutex_);
    stages = stages_;
  }
  auto at_end = [this, then = std::move(then)](LeafStage::Result result) {
    {
      const base::MutexLock lock(mutex_);
      in_pass_ = false;
    }
    then(std::move(result));
  };
  const auto gathered = std::make_shared<Gathered>(stages.size(), std::move(at_end));
  for (const auto& stage : stages) {
    stage->on_all(earlier, [gathered](LeafStage::Result result) {
      on_stage_done(gathered, std::move(result));
    });
  }
}

void LeafStages::give_up(const std::string& cause) noexcept {
  std::vector<detail::Ref<LeafStage>> stages;
  {
    const base::MutexLock lock(mutex_);
    if (!std::exchange(in_pass_, false)) return;
    stages.swap(stages_);
  }
  for (const auto& stage : stages) {
    try {
      stage->on_given_up(cause);
    } catch (const std::exception& error) {
      base::log(LogLevel::kError, "autograd", "a stage was not told that its pass was given up: {}",
                error.what());
    }
  }
}

}  // namespace weft::autograd

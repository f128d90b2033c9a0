// SPDX-License-Identifier: BSD-3-Clause
#include "nn/reducer.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include "autograd/contexts.h"
#include "nn/wait_for_all.h"
#include "rpc/functions/describe_exception.h"
#include "weft/detail/arrival.h"

namespace weft::nn {

namespace {

// The parameters with sparse gradients: those of embeddings with the option `sparse`, and those
// that the program names.
std::set<std::string> sparse_names(torch::nn::Module& module, const DataParallelOptions& options) {
  std::set<std::string> names(options.sparse_parameters.begin(), options.sparse_parameters.end());
  for (const auto& each : module.named_modules()) {
    const auto* table = each.value()->as<torch::nn::EmbeddingImpl>();
    const auto* bag = each.value()->as<torch::nn::EmbeddingBagImpl>();
    if ((table && table->options.sparse()) || (bag && bag->options.sparse())) {
      names.insert(each.key().empty() ? "weight" : each.key() + ".weight");
    }
  }
  return names;
}

// The GPU of the first tensor that is on one; the CPU if none is.
at::Device first_gpu(const std::vector<at::Tensor>& tensors) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [](const at::Tensor& each) { return each.is_cuda(); });
  return found == tensors.end() ? at::kCPU : found->device();
}

// Copies into the tensor that `.grad` is, if there is one and both are dense. Otherwise replaces
// it.
void put_grad(const at::Tensor& parameter, const at::Tensor& gradient) {
  at::Tensor& grad = parameter.mutable_grad();
  const bool is_kind = grad.defined() && !grad.is_sparse() && !gradient.is_sparse();
  if (!is_kind) {
    grad = gradient;
  } else if (grad.data_ptr() != gradient.data_ptr()) {
    grad.copy_(gradient);
  }
}

}  // namespace

/// A callback that torch's engine runs at the end of a backward(). If the pass fails, the engine
/// destroys it without running it.
class Reducer::EndOfBackward {
 public:
  EndOfBackward(std::shared_ptr<Reducer> reducer, uint64_t owner)
      : reducer_(std::move(reducer)), owner_(owner) {}
  ~EndOfBackward() {
    if (awaited_) reducer_->drop_unfinished_round(owner_, "its backward pass failed");
  }
  /// To be called when the engine has accepted the callback.
  void await() { awaited_ = true; }
  void run() {
    reducer_->end_backward(owner_);
    awaited_ = false;
  }

 private:
  const std::shared_ptr<Reducer> reducer_;
  const uint64_t owner_;
  bool awaited_ = false;
};

/// The stage of the reducer in one context.
class Reducer::Stage final : public autograd::LeafStage {
 public:
  Stage(std::weak_ptr<Reducer> reducer, uint64_t owner)
      : reducer_(std::move(reducer)), owner_(owner) {}

  /// A forward has happened in the context.
  void arm() { armed_ = true; }

  void on_leaf(const at::Tensor& leaf, const at::Tensor& gradient) override {
    if (const auto reducer = reducer_.lock()) {
      const size_t index = reducer->index_.at(leaf.unsafeGetTensorImpl());
      reducer->on_gradient(Pass::kOfContext, owner_, index, gradient);
    }
  }
  void on_all(const Earlier& earlier, std::function<void(Result)> done) override;
  void on_given_up(const std::string& cause) override {
    armed_ = false;
    if (const auto reducer = reducer_.lock()) reducer->drop_unfinished_round(owner_, cause);
  }

 private:
  const std::weak_ptr<Reducer> reducer_;
  const uint64_t owner_;
  std::atomic<bool> armed_{false};
};

std::shared_ptr<Reducer> Reducer::make(std::shared_ptr<collective::ProcessGroupState> group,
                                       torch::nn::Module& module,
                                       const DataParallelOptions& options) {
  auto reducer = std::make_shared<Reducer>(std::move(group), module, options);
  reducer->add_hooks();
  return reducer;
}

Reducer::Reducer(std::shared_ptr<collective::ProcessGroupState> group, torch::nn::Module& module,
                 const DataParallelOptions& options)
    : group_(std::move(group)),
      channel_(group_->open_channel()),
      dual_(channel_, AllReduceWay::kAutomatic),
      options_(options) {
  try {
    std::vector<NamedTensor> named;
    std::vector<at::Tensor> all;
    for (const auto& each : module.named_parameters()) named.emplace_back(each.key(), each.value());
    for (const auto& each : module.named_buffers()) {
      named.emplace_back(each.key(), each.value());
      buffers_.push_back(each.value().detach());
    }
    for (const auto& [name, tensor] : named) all.push_back(tensor.detach());
    const at::Device device = group_->uses_nccl() ? first_gpu(all) : at::kCPU;
    // Before anything that may fail on one member only: the members must not disagree about which
    // of the group's channels has its carrier.
    if (device.is_cpu()) dual_ = group_->on_cpu(channel_);
    check_same(*channel_, group_->members(), named, device);
    find_parameters(module);
    if (!device.is_cpu()) dual_ = group_->connect(channel_, device);
    broadcast_all(dual_, channel_->everybody(), all, 0);
  } catch (...) {
    group_->close_channel(*channel_);
    throw;
  }
  const Lock lock(mutex_);
  active_ = channel_->everybody();
  for (auto& used : used_) used.resize(parameters_.size());
  assume_order();
}

Reducer::~Reducer() { group_->close_channel(*channel_); }

void Reducer::find_parameters(torch::nn::Module& module) {
  std::set<std::string> sparse = sparse_names(module, options_);
  for (const auto& each : module.named_parameters()) {
    const at::Tensor& parameter = each.value();
    const bool is_sparse = sparse.erase(each.key()) > 0;
    if (!parameter.requires_grad()) continue;
    if (!index_.emplace(parameter.unsafeGetTensorImpl(), parameters_.size()).second) continue;
    names_.push_back(each.key());
    parameters_.push_back(parameter);
    bucketed_.push_back(
        {static_cast<size_t>(parameter.numel()) * parameter.element_size(),
         fmt::format("{} on {}", c10::toString(parameter.scalar_type()), parameter.device().str()),
         is_sparse});
  }
  if (!sparse.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the module has no parameter {} that could have sparse gradients",
                            *sparse.begin()));
  }
  if (parameters_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the module has no parameter that requires a gradient: there is nothing to do in "
                "parallel");
  }
}

void Reducer::add_hooks() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto on_grad = [weak = weak_from_this(), i] {
      if (const auto reducer = weak.lock()) {
        reducer->on_gradient(Pass::kOfEngine, 0, i, reducer->parameters_[i].grad());
      }
    };
    hooks_.push_back(std::make_unique<autograd::LeafHook>(parameters_[i], std::move(on_grad)));
  }
}

// Plans with the reverse of the order in which the parameters were declared.
void Reducer::assume_order() {
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  order_ = Order::kAssumed;
  plan(order);
}

void Reducer::plan(const std::vector<size_t>& order) {
  plan_ = plan_buckets(bucketed_, order, {options_.first_bucket_bytes, options_.bucket_bytes});
}

// --- before a pass ---------------------------------------------------------------------------

void Reducer::begin_forward(bool training) {
  if (!c10::GradMode::is_enabled()) return;
  Stage* stage = nullptr;
  if (autograd::ContextState* context = autograd::current_state()) {
    stage = &stage_in(*context);
  }
  if (!synchronizes()) return;
  if (const auto failure = channel_->failure()) throw *failure;
  prepare_round(training);
  if (stage) stage->arm();
}

// Finds or makes the reducer's stage in the context. The context keeps it.
Reducer::Stage& Reducer::stage_in(autograd::ContextState& context) {
  auto stage = context.stages().find(parameters_.front());
  if (!stage) {
    stage = weft::detail::make_ref<Stage>(weak_from_this(), ++last_owner_);
    context.stages().add(stage, parameters_);
  }
  return static_cast<Stage&>(*stage);
}

// Agrees on members, order and buffers with the others, once for each round. If a pass is tried
// again or has several forwards, the later ones do nothing here: so members with different numbers
// of forwards stay in step.
void Reducer::prepare_round(bool training) {
  const base::MutexLock one_at_a_time(preparing_);
  bool prepared = false, buffers_sent = false, joining = false;
  auto divisor = collective::Divisor::kAll;
  std::vector<int> active;
  {
    const Lock lock(mutex_);
    prepared = prepared_;
    buffers_sent = buffers_sent_;
    joining = joining_;
    if (average_over_active_) divisor = collective::Divisor::kPresent;
    active = active_;
  }
  const c10::AutoGradMode off(false);
  if (!prepared) {
    if (joining) {
      active = channel_->agree_on_members(divisor).wait().present;
      const Lock lock(mutex_);
      active_ = active;
    }
    take_over_order(active);
  }
  const bool sends = training && !buffers_sent && options_.broadcast_buffers && !buffers_.empty();
  if (sends) broadcast_all(dual_, active, buffers_, active.front());
  const Lock lock(mutex_);
  prepared_ = true;
  buffers_sent_ = buffers_sent || training;
}

// Takes over the order of the first member. Gradients do not come in the order in which the
// parameters were declared, so the first member broadcasts the order that it has seen.
void Reducer::take_over_order(const std::vector<int>& active) {
  std::vector<size_t> order;
  {
    const Lock lock(mutex_);
    if (order_ != Order::kSeen) return;
    order = seen_order_;
  }
  at::Tensor agreed = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), agreed.data_ptr<int64_t>());
  broadcast_all(dual_, active, {agreed}, active.front());
  const int64_t* said = agreed.data_ptr<int64_t>();
  std::vector<bool> seen(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const auto index = static_cast<size_t>(said[i]);
    if (index >= order.size() || seen[index]) {
      throw Error(ErrorCode::kBadMessage, "an order of parameters that names one twice");
    }
    seen[index] = true;
    order[i] = index;
  }
  const Lock lock(mutex_);
  order_ = Order::kAgreed;
  plan(order);
}

// --- a round ---------------------------------------------------------------------------------

Reducer::Round& Reducer::round_of(Pass pass, uint64_t owner) {
  if (!round_) {
    const bool of_engine = pass == Pass::kOfEngine;
    const uint64_t its_owner = of_engine ? ++last_owner_ : owner;
    if (of_engine) {
      auto end = std::make_shared<EndOfBackward>(shared_from_this(), its_owner);
      autograd::at_end_of_backward([end] { end->run(); });
      end->await();
    }
    round_.emplace(Round{pass,
                         its_owner,
                         BucketProgress(plan_, parameters_.size()),
                         std::vector<at::Tensor>(parameters_.size()),
                         {}});
    arrivals_.clear();
  }
  if (round_->pass != pass || (pass == Pass::kOfContext && round_->owner != owner)) {
    throw Error(ErrorCode::kInvalidArgument,
                "another backward pass through this DistributedDataParallel is going on; its "
                "passes come one after the other");
  }
  return *round_;
}

void Reducer::on_gradient(Pass pass, uint64_t owner, size_t parameter, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  Lock lock(mutex_);
  used_in(pass)[parameter] = true;
  if (!synchronizes()) return;
  Round& round = round_of(pass, owner);
  if (round.progress.is_ready(parameter)) return;
  round.gradients[parameter] = gradient;
  arrivals_.push_back(parameter);
  begin_reductions(round, round.progress.on_ready(parameter));
}

// All members begin their reductions in the same order, that of the plan.
void Reducer::begin_reductions(Round& round, const std::vector<size_t>& buckets) {
  const size_t over = average_over_active_ ? active_.size() : static_cast<size_t>(group_->size());
  const ReductionOptions options{active_, static_cast<double>(over),
                                 options_.find_unused_parameters};
  for (const size_t bucket : buckets) {
    std::vector<Reduced> gradients;
    for (const size_t i : plan_[bucket]) {
      gradients.push_back({parameters_[i], round.gradients[i], used_in(round.pass)[i]});
    }
    const bool sparse = bucketed_[plan_[bucket].front()].sparse;
    round.reducing.push_back(sparse
                                 ? reduce_sparse(*channel_, options, std::move(gradients.front()))
                                 : reduce_dense(dual_, options, std::move(gradients)));
  }
}

// If a reduction was begun, fails the channel: the other members would otherwise wait for it until
// their timeouts. If none was begun, the pass may be tried again.
void Reducer::drop_unfinished_round(uint64_t owner, const std::string& cause) {
  bool begun = false;
  {
    const Lock lock(mutex_);
    if (!round_ || round_->owner != owner) return;
    begun = round_->progress.begun() > 0;
    round_.reset();
  }
  if (begun) give_up(cause);
}

void Reducer::give_up(const std::string& cause) {
  const std::string& name = group_->members()[static_cast<size_t>(group_->rank())].name;
  channel_->fail_and_tell(
      Error(ErrorCode::kContextAborted,
            fmt::format("{} gave up in the middle of a backward pass: {}", name, cause)));
}

std::pair<std::vector<Reducing>, std::vector<size_t>> Reducer::finish_round(
    const autograd::LeafStage::Earlier& earlier) {
  const Lock lock(mutex_);
  Round& round = *round_;
  const std::vector<size_t> missing = round.progress.missing();
  for (const size_t i : missing) {
    // No gradient in this pass: take the one from earlier passes. It stays as it is if no member
    // has used the parameter.
    const at::Tensor before = earlier(parameters_[i]);
    if (before.defined()) round.gradients[i] = before.detach().clone();
  }
  begin_reductions(round, round.progress.on_all());
  auto reducing = std::move(round.reducing);
  used_in(round.pass).assign(parameters_.size(), false);
  round_.reset();
  prepared_ = buffers_sent_ = false;
  if (missing.empty() && order_ == Order::kAssumed && !options_.find_unused_parameters) {
    order_ = Order::kSeen;
    seen_order_ = arrivals_;
  }
  return {std::move(reducing), options_.find_unused_parameters ? std::vector<size_t>() : missing};
}

std::string Reducer::complain_of(const std::vector<size_t>& missing) const {
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(missing.size(), 10); ++i) {
    names += (i == 0 ? "" : ", ") + names_[missing[i]];
  }
  return fmt::format(
      "{} of {} parameters of a DistributedDataParallel got no gradient ({}{}); set "
      "find_unused_parameters if that is meant",
      missing.size(), parameters_.size(), names, missing.size() > 10 ? ", ..." : "");
}

// Called at the end of a backward() of torch's engine.
void Reducer::end_backward(uint64_t owner) {
  {
    const Lock lock(mutex_);
    if (!round_ || round_->owner != owner) return;
  }
  const auto [reducing, missing] =
      finish_round([](const at::Tensor& parameter) { return parameter.grad(); });
  const c10::AutoGradMode off(false);
  std::vector<Future<collective::Outcome>> outcomes;
  outcomes.reserve(reducing.size());
  for (const Reducing& each : reducing) outcomes.push_back(each.outcome);
  wait_for_all(outcomes);
  for (const Reducing& each : reducing) {
    for (const Reduced& reduced : each.take()) {
      if (reduced.used) put_grad(reduced.parameter, reduced.gradient);
    }
  }
  if (!missing.empty()) throw Error(ErrorCode::kInvalidArgument, complain_of(missing));
}

// Called when this worker has all its gradients in a pass of a context.
void Reducer::Stage::on_all(const Earlier& earlier, std::function<void(Result)> done) {
  const auto reducer = reducer_.lock();
  if (!reducer || !reducer->synchronizes()) return done({});
  {
    Lock lock(reducer->mutex_);
    const bool has_round = reducer->round_ && reducer->round_->owner == owner_;
    const bool others_may = armed_.exchange(false) && reducer->options_.find_unused_parameters;
    if (!has_round && !others_may) return done({});
    reducer->round_of(Pass::kOfContext, owner_);
  }
  auto [reducing, missing] = reducer->finish_round(earlier);
  std::vector<Future<void>> all;
  for (const Reducing& each : reducing) {
    all.push_back(each.outcome.then([](const collective::Outcome&) {}));
  }
  auto finish = [reducer, reducing = std::move(reducing), missing = std::move(missing),
                 done = std::move(done)](std::exception_ptr) {
    Result result;
    if (!missing.empty()) result.cause = reducer->complain_of(missing);
    try {
      for (const Reducing& each : reducing) {
        for (const Reduced& reduced : each.take()) {
          if (reduced.used) result.gradients.emplace_back(reduced.parameter, reduced.gradient);
        }
      }
    } catch (const std::exception&) {
      result.cause = rpc::describe_exception(std::current_exception());
    }
    done(std::move(result));
  };
  weft::detail::when_all(std::move(all), std::move(finish));
}

// --- join ------------------------------------------------------------------------------------

void Reducer::begin_join(bool average_over_active) {
  const Lock lock(mutex_);
  if (joining_) {
    throw Error(ErrorCode::kInvalidArgument, "this DistributedDataParallel is in a join already");
  }
  joining_ = true;
  average_over_active_ = average_over_active;
  prepared_ = false;
}

void Reducer::cancel_join() {
  const Lock lock(mutex_);
  joining_ = average_over_active_ = false;
}

Future<int> Reducer::depart() { return channel_->depart(); }

void Reducer::end_join(int last) {
  {
    const Lock lock(mutex_);
    joining_ = average_over_active_ = prepared_ = buffers_sent_ = false;
    active_ = channel_->everybody();
    // Members that were in more passes may have another order.
    assume_order();
  }
  std::vector<at::Tensor> all = buffers_;
  for (const at::Tensor& each : parameters_) all.push_back(each.detach());
  const c10::AutoGradMode off(false);
  broadcast_all(dual_, channel_->everybody(), all, last);
}

}  // namespace weft::nn

// SPDX-License-Identifier: BSD-3-Clause
#include "weft/nn/distributed_data_parallel.h"

#include <cxxabi.h>

#include <exception>
#include <optional>
#include <utility>

#include "nn/reducer.h"
#include "rpc/functions/describe_exception.h"

namespace weft::nn {

NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {
  reducer_->pause();
}
NoSync::~NoSync() { reducer_->resume(); }

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
                           const DataParallelOptions& options)
    : torch::nn::Module("DistributedDataParallel"), group_(std::move(group)) {
  if (!module) throw Error(ErrorCode::kInvalidArgument, "a DistributedDataParallel of no module");
  reducer_ = Reducer::make(group_.group(), *module, options);
  register_module("module", std::move(module));
}

DataParallel::~DataParallel() = default;

void DataParallel::begin_forward() { reducer_->begin_forward(is_training()); }

namespace {

// Runs `step`. Keeps what it throws in `first`, unless an earlier step has thrown.
template <typename F>
void attempt(std::exception_ptr& first, const F& step) {
  try {
    step();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    if (!first) first = std::current_exception();
  }
}

}  // namespace

void join(const std::vector<DataParallel*>& modules, const std::function<void()>& batches,
          const JoinOptions& options) {
  for (const DataParallel* each : modules) {
    if (!each) throw Error(ErrorCode::kInvalidArgument, "a join of no DistributedDataParallel");
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    try {
      modules[i]->reducer()->begin_join(options.average_over_active);
    } catch (const Error&) {
      while (i > 0) modules[--i]->reducer()->cancel_join();
      throw;
    }
  }
  try {
    batches();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    const std::string cause = rpc::describe_exception(std::current_exception());
    for (DataParallel* each : modules) each->reducer()->give_up(cause);
    throw;
  }
  // Depart from all modules before waiting for any: other members may still be training with the
  // next module, and must learn that this member has departed from it. If the join of one module
  // fails, the other modules' joins end all the same.
  std::exception_ptr first_failure;
  std::vector<std::optional<Future<int>>> departures(modules.size());
  for (size_t i = 0; i < modules.size(); ++i) {
    attempt(first_failure, [&] { departures[i] = modules[i]->reducer()->depart(); });
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    Reducer& reducer = *modules[i]->reducer();
    std::optional<int> last;
    attempt(first_failure, [&] {
      if (departures[i]) last = departures[i]->wait();
    });
    if (last) {
      attempt(first_failure, [&] { reducer.end_join(*last); });
    } else {
      // The others would wait for a departure that they are not told of.
      if (!departures[i]) reducer.give_up("a member could not leave the join");
      reducer.cancel_join();
    }
  }
  if (first_failure) std::rethrow_exception(first_failure);
}

}  // namespace weft::nn

// SPDX-License-Identifier: BSD-3-Clause
#include "loads.h"

#include <random>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "account.h"
#include "base/temporary_directory.h"
#include "weft/autograd.h"
#include "weft/checkpoint.h"
#include "weft/nn.h"
#include "weft/optim.h"
#include "weft/process_group.h"
#include "weft/rref.h"

namespace weft::soak {

using namespace std::chrono_literals;

std::atomic<bool> stopping{false};

Findings& findings() {
  static Findings all;
  return all;
}
void Findings::add(const std::string& what) {
  if (count_++ < 20) fmt::print(stderr, "soak: WRONG on {}: {}\n", get_worker_info().name, what);
}

Tally& tally() {
  static Tally all;
  return all;
}
void Tally::add(const std::string& what, uint64_t n) {
  std::lock_guard lock(mutex_);
  counts_[what] += n;
}
std::map<std::string, uint64_t> Tally::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

bool is_excused(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kOutcomeUnknown:
    case ErrorCode::kTimeout:
    case ErrorCode::kContextAborted:
      return true;
    case ErrorCode::kRRefLost:
      // The connection broke over the creation.
      return error.message().find("it is not known whether it was") != std::string::npos;
    case ErrorCode::kRemoteError:
      // A function whose own call failed.
      return error.remote_type() == "weft::Error" &&
             (error.remote_text().starts_with("kUnavailable") ||
              error.remote_text().starts_with("kOutcomeUnknown") ||
              error.remote_text().starts_with("kTimeout"));
    default:
      return false;
  }
}

std::string worker_name(int rank) { return "worker" + std::to_string(rank); }

namespace {

// Runs `once` until the soak ends; an error that faults excuse is counted, any other is a finding.
template <typename F>
void repeat(const std::string& what, const F& once) {
  while (!stopping) {
    try {
      once();
      tally().add(what);
    } catch (const Error& error) {
      tally().add(what + " failed");
      if (!is_excused(error)) findings().add(what + ": " + error.what());
    }
  }
}

int other_than(int rank, int workers, std::mt19937& random) {
  const int distance = 1 + static_cast<int>(random() % static_cast<unsigned>(workers - 1));
  return (rank + distance) % workers;
}

}  // namespace

// --- calls -------------------------------------------------------------------------------------

namespace {

CalleeBook callee_book;
CallerBook caller_book;

at::Tensor noted(uint64_t number, at::Tensor tensor) {
  callee_book.note(current_call::caller().id, number);
  return tensor + 1;
}
Ran ran(uint64_t up_to) { return callee_book.ran(current_call::caller().id, up_to); }

struct PendingCall {
  int callee;
  uint64_t number;
  at::Tensor sent;
  Future<at::Tensor> result;
};

PendingCall start_call(int callee, int64_t elements) {
  const uint64_t number = caller_book.next(callee);
  const at::Tensor tensor = at::full({elements}, static_cast<float>(number % 1000));
  return {callee, number, tensor, rpc_async<noted>({callee, 20s}, number, tensor)};
}

void finish_call(const PendingCall& call) {
  try {
    const at::Tensor result = call.result.wait();
    if (!at::equal(result, call.sent + 1)) findings().add("a call returned another value");
    tally().add("calls");
  } catch (const Error& error) {
    caller_book.note_failed(call.callee, call.number, error.may_have_run());
    tally().add("calls failed");
    if (!is_excused(error)) findings().add(std::string("call: ") + error.what());
  }
}

}  // namespace

void make_calls(int rank, int workers) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  while (!stopping) {
    const bool is_large = random() % 200 == 0;
    const auto elements = static_cast<int64_t>(is_large ? 1 << 20 : 1 + random() % 1000);
    finish_call(start_call(other_than(rank, workers, random), elements));
  }
}

void make_bursts(int rank, int workers) {
  std::mt19937 random(static_cast<unsigned>(rank) + 101);
  while (!stopping) {
    std::vector<PendingCall> calls;
    const int callee = other_than(rank, workers, random);
    for (int i = 0; i < 64; ++i) calls.push_back(start_call(callee, 16));
    for (const PendingCall& call : calls) finish_call(call);
    std::this_thread::sleep_for(1ms);  // leaves time to the other loads
  }
}

void audit_calls(int rank, int workers) {
  for (int callee = 0; callee < workers; ++callee) {
    if (callee == rank) continue;
    const Ran there = rpc_sync<ran>(callee, caller_book.made(callee));
    const std::string wrong = caller_book.audit(callee, there);
    if (!wrong.empty()) findings().add("calls to " + worker_name(callee) + ": " + wrong);
  }
}

// --- references --------------------------------------------------------------------------------

namespace {

struct Counter {
  explicit Counter(int64_t start) : value(start) { ++alive; }
  Counter(const Counter&) = delete;
  ~Counter() { --alive; }
  int64_t add(int64_t n) { return value += n; }
  std::atomic<int64_t> value;
  static inline std::atomic<int64_t> alive{0};
};

int64_t add_through(RRef<Counter> counter, int64_t n) { return counter.rpc_sync<&Counter::add>(n); }

}  // namespace

int64_t objects_alive() { return Counter::alive; }

void use_references(int rank, int workers) {
  std::mt19937 random(static_cast<unsigned>(rank) + 201);
  repeat("references", [&] {
    const int owner = other_than(rank, workers, random);
    const int third = other_than(owner, workers, random);
    const auto counter = remote<Counter>(Destination(owner, 20s), int64_t{100});
    const int64_t own = counter.within(20s).rpc_sync<&Counter::add>(1);
    if (own != 101) findings().add(fmt::format("a new counter counts {}", own));
    const int64_t shared = rpc_sync<add_through>({third, 20s}, counter, int64_t{10});
    if (shared != 111) findings().add(fmt::format("a shared counter counts {}", shared));
  });
}

// --- training ----------------------------------------------------------------------------------

namespace {

struct Layer {
  Layer(float start, int64_t size) : weight(at::full({size}, start).requires_grad_()) {}
  at::Tensor forward(at::Tensor x) { return x * weight; }
  RRef<at::Tensor> parameter() { return RRef<at::Tensor>(weight); }
  at::Tensor value() { return weight.detach().clone(); }
  at::Tensor weight;
};

// Sends a step until every owner has applied it: all of them live.
void step_until_done(optim::DistributedOptimizer<torch::optim::SGD>& optimizer,
                     const autograd::Context& context) {
  for (int attempt = 0;; ++attempt) {
    try {
      return optimizer.step(context, 20s);
    } catch (const Error& error) {
      tally().add("steps repeated");
      if (attempt < 20 && is_excused(error)) continue;
      if (error.may_have_run()) findings().add(std::string("half a step: ") + error.what());
      throw;
    }
  }
}

template <typename F>
auto until_it_works(const F& f) {
  for (int attempt = 0;; ++attempt) {
    try {
      return f();
    } catch (const Error& error) {
      if (attempt == 20 || !is_excused(error)) throw;
    }
  }
}

// x * w1 * w2 with w1 and w2 on two other workers; the same is computed here.
class Model {
 public:
  Model(int first, int second)
      : first_(remote<Layer>(first, 1.5f, kSize)),
        second_(remote<Layer>(second, 0.5f, kSize)),
        optimizer_({{first_.rpc_sync<&Layer::parameter>(), second_.rpc_sync<&Layer::parameter>()}},
                   torch::optim::SGDOptions(kRate)),
        expected_{at::full({kSize}, 1.5f), at::full({kSize}, 0.5f)} {}

  void train_once(const at::Tensor& x) {
    {
      autograd::Context context;
      const at::Tensor hidden = first_.within(20s).rpc_sync<&Layer::forward>(x);
      const at::Tensor out = second_.within(20s).rpc_sync<&Layer::forward>(hidden);
      context.backward({out.sum()}, {.timeout = 20s});
      step_until_done(optimizer_, context);
    }
    const at::Tensor first_gradient = x * expected_[1];
    const at::Tensor second_gradient = x * expected_[0];
    expected_[0] -= first_gradient * kRate;
    expected_[1] -= second_gradient * kRate;
    check("first", first_, expected_[0], first_gradient);
    check("second", second_, expected_[1], second_gradient);
    tally().add("steps");
  }

 private:
  static constexpr int64_t kSize = 1000;
  static constexpr double kRate = 1e-4;

  // After a finding the model goes on from the value that is there.
  static void check(const char* which, const RRef<Layer>& layer, at::Tensor& expected,
                    const at::Tensor& gradient) {
    const at::Tensor value =
        until_it_works([&] { return layer.within(20s).rpc_sync<&Layer::value>(); });
    if (at::allclose(value, expected, 1e-5, 1e-6)) return;
    const double off = (expected - value).sum().item<double>();
    findings().add(fmt::format("the {} parameter is {} steps further than it should be", which,
                               off / (gradient.sum().item<double>() * kRate)));
    expected = value.clone();
  }

  RRef<Layer> first_, second_;
  optim::DistributedOptimizer<torch::optim::SGD> optimizer_;
  at::Tensor expected_[2];
};

// Saves, changes what was saved, loads, and has it back.
class SavedModule {
 public:
  explicit SavedModule(int host)
      : module_(worker_name(host), 8, 4), checkpoint_(directory_.path()) {
    checkpoint_.add("module", module_);
  }
  void save_and_load() {
    const nn::ModuleState state = until_it_works([&] { return module_.state(); });
    checkpoint_.save();
    nn::ModuleState other;
    for (const auto& [name, tensor] : state) other[name] = tensor + 1;
    until_it_works([&] { return module_.load_state(other), 0; });
    until_it_works([&] { return checkpoint_.load().has_value(); });
    const nn::ModuleState back = until_it_works([&] { return module_.state(); });
    for (const auto& [name, tensor] : state) {
      if (!at::equal(back.at(name), tensor))
        findings().add("a checkpoint brought back another " + name);
    }
    tally().add("checkpoints");
  }

 private:
  nn::RemoteModule<torch::nn::LinearImpl> module_;
  base::TemporaryDirectory directory_{"weft-soak"};
  checkpoint::Checkpoint checkpoint_;
};

}  // namespace

void train(int rank, int workers) {
  Model model((rank + 1) % workers, (rank + 2) % workers);
  SavedModule saved((rank + 1) % workers);
  const at::Tensor x = at::arange(1000, at::kFloat) / 1000;
  for (uint64_t round = 0; !stopping; ++round) {
    try {
      model.train_once(x);
      if (round % 100 == 0) saved.save_and_load();
    } catch (const Error& error) {
      tally().add("rounds of training failed");
      if (!is_excused(error)) findings().add(std::string("training: ") + error.what());
    }
    std::this_thread::sleep_for(2ms);  // leaves time to the other loads
  }
}

// --- all_reduce --------------------------------------------------------------------------------

// All members leave after the same round: the first element counts those that want to stop.
void reduce(int rank, int workers) {
  const ProcessGroup group = new_group({}, {.timeout = 60s});
  for (uint64_t round = 0;; ++round) {
    const int64_t elements = round % 50 == 0 ? 1 << 20 : 1 + static_cast<int64_t>(round % 1000);
    const at::Tensor tensor = at::full({elements + 1}, static_cast<float>(rank + 1));
    tensor[0] = stopping ? 1 : 0;
    try {
      group.all_reduce(tensor);
    } catch (const Error& error) {
      return findings().add(std::string("all_reduce: ") + error.what());
    }
    const auto sum = static_cast<float>(workers * (workers + 1) / 2);
    if (!at::equal(tensor.slice(0, 1), at::full({elements}, sum)))
      findings().add("all_reduce gave another sum");
    tally().add("all_reduces");
    if (tensor[0].item<float>() > 0) return;
    std::this_thread::sleep_for(1ms);  // leaves time to the other loads
  }
}

}  // namespace weft::soak

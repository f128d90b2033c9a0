// The program of docs/tutorial.md, one function for each chapter: a trainer and a parameter server.
// SPDX-License-Identifier: BSD-3-Clause
#include <ftw.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <weft/autograd.h>
#include <weft/checkpoint.h>
#include <weft/nn.h>
#include <weft/optim.h>
#include <weft/rpc.h>
#include <weft/rref.h>

namespace {

using namespace std::chrono_literals;

// Prints what the tutorial says, and ends the program if it is not so.
void claim(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error("not so: " + what);
  std::cout << what << '\n';
}

// Prints the error that `call` ends with, and ends the program if it is none of this code.
void claim_error(weft::ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const weft::Error& error) {
    return claim(error.code() == code, error.what());
  }
  claim(false, weft::name(code));
}

// --- 1: calls ----------------------------------------------------------------------------------

at::Tensor scale(const at::Tensor& x, double by) {
  if (by == 0) throw std::invalid_argument("a scale of zero");
  return x * by;
}

at::Tensor make_batch(int64_t rows) { return at::ones({rows, 3}); }
double sum_of_batch(int64_t rows) {
  const std::string caller = weft::current_call::caller().name;
  return weft::rpc_sync<make_batch>(caller, rows).sum().item<double>();
}

void take_long() { std::this_thread::sleep_for(100ms); }

void make_calls() {
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor scaled = weft::rpc_sync<scale>("ps", x, 3.0);
  claim(scaled.equal(x * 3), "the other worker computes");

  weft::Future<double> later = weft::rpc_async<sum_of_batch>("ps", 4);
  const double here = x.sum().item<double>();  // while the other worker is busy
  claim(here + later.wait() == 18, "both compute, and they call each other");

  try {
    weft::rpc_sync<scale>("ps", x, 0.0);
  } catch (const weft::Error& error) {
    std::cout << error.what() << '\n';
  }

  using enum weft::ErrorCode;
  claim_error(kInvalidArgument, [&] { weft::rpc_sync<scale>("sp", x, 3.0); });
  claim_error(kTimeout, [] { weft::rpc_sync<take_long>({"ps", 20ms}); });
}

// --- 2: objects --------------------------------------------------------------------------------

class Vocabulary {
 public:
  static constexpr bool kSerialized = true;  // one call at a time: it needs no mutex

  int64_t number(const std::string& word) {
    return numbers_.emplace(word, static_cast<int64_t>(numbers_.size())).first->second;
  }
  at::Tensor one_hot(const std::string& word) {
    return at::one_hot(at::scalar_tensor(number(word), at::kLong), 8);
  }

 private:
  std::map<std::string, int64_t> numbers_;
};

int64_t add_on_owner(const weft::RRef<Vocabulary>& vocabulary, const std::string& word) {
  return vocabulary.local_value().number(word);
}

void use_objects() {
  weft::RRef<Vocabulary> vocabulary = weft::remote<Vocabulary>("ps");
  const int64_t first = vocabulary.rpc_sync<&Vocabulary::number>("warp");
  const int64_t second = vocabulary.rpc_async<&Vocabulary::number>("weft").wait();
  claim(first == 0 && second == 1, "the object remembers");

  weft::RRef<at::Tensor> row = vocabulary.remote<&Vocabulary::one_hot>("weft");
  claim(row.owner().name == "ps" && row.to_here().argmax().item<int64_t>() == 1,
        "a result stays there until it is fetched");

  claim(weft::rpc_sync<add_on_owner>("ps", vocabulary, "loom") == 2, "references travel");

  claim_error(weft::ErrorCode::kInvalidArgument, [&] { vocabulary.local_value(); });
}

// --- 3: gradients ------------------------------------------------------------------------------

struct Scale {
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor gradient(int64_t context_id) { return weft::autograd::gradient(context_id, weight); }
  bool has_grad() const { return weight.grad().defined(); }

  at::Tensor weight = at::full({3}, 2.0).requires_grad_();
};

void differentiate() {
  weft::RRef<Scale> remote_scale = weft::remote<Scale>("ps");
  at::Tensor x = at::ones({4, 3}).requires_grad_();

  weft::autograd::Context context;
  const at::Tensor loss = remote_scale.rpc_sync<&Scale::forward>(x).sum();
  context.backward({loss});

  claim(context.gradient(x).equal(at::full({4, 3}, 2.0)), "here: d loss / d x is the weight");
  const at::Tensor there = remote_scale.rpc_sync<&Scale::gradient>(context.id());
  claim(there.equal(at::full({3}, 4.0)), "there: d loss / d weight is the sum of x");

  claim(!x.grad().defined() && !remote_scale.rpc_sync<&Scale::has_grad>(), "no .grad anywhere");

  torch::optim::SGD plain({x}, 0.1);
  plain.step();
  claim(x.equal(at::ones({4, 3})), "a plain optimizer does nothing");
}

// --- 4: training -------------------------------------------------------------------------------

constexpr int64_t kWords = 32, kWidth = 16, kClasses = 4;

struct Training {
  using Table = weft::nn::RemoteModule<torch::nn::EmbeddingImpl>;
  using Optimizer = weft::optim::DistributedOptimizer<torch::optim::Adam>;

  Table table{"ps", kWords, kWidth};
  torch::nn::Linear decoder{kWidth, kClasses};
  Optimizer optimizer{parameters(), torch::optim::AdamOptions(0.05)};
  weft::optim::WarmupCosineLR schedule{optimizer, 5, 60};

  std::vector<weft::RRef<at::Tensor>> parameters() const {
    std::vector<weft::RRef<at::Tensor>> all = table.remote_parameters();
    for (const auto& parameter : weft::nn::parameter_rrefs(*decoder)) all.push_back(parameter);
    return all;
  }

  double step() {
    const at::Tensor words = at::arange(kWords), classes = words % kClasses;
    weft::autograd::Context context;
    const at::Tensor loss = at::cross_entropy_loss(decoder(table.forward(words)), classes);
    context.backward({loss});
    optimizer.clip_grad_norm(context, 1.0);
    optimizer.step(context);
    schedule.step();
    return loss.item<double>();
  }
};

void train() {
  Training training;
  const double first = training.step();
  double last = first;
  for (int i = 1; i < 60; ++i) last = training.step();

  claim(last < 0.1 * first, "it learns");
  claim(training.optimizer.lr() < 1e-9, "the rate has come down to zero");
  for (const auto& outcome : training.optimizer.last_step())
    std::cout << outcome.owner.name << " updated " << outcome.parameters << " tensors\n";
}

// --- 5: checkpoints ----------------------------------------------------------------------------

// Continues where the last run left off, up to `steps` steps in all; returns the last loss.
double train_up_to(int64_t steps, const std::string& directory) {
  Training training;
  weft::checkpoint::Checkpoint checkpoint(directory);
  checkpoint.add("table", training.table);
  checkpoint.add("decoder", training.decoder);
  checkpoint.add("optimizer", training.optimizer);

  int64_t done = 0;
  if (const auto found = checkpoint.load()) done = std::get<int64_t>(found->notes.at("steps"));
  for (int64_t i = 0; i < done; ++i) training.schedule.step();

  double loss = 0;
  for (; done < steps; ++done) {
    loss = training.step();
    if (done % 10 == 9) checkpoint.save({{"steps", done + 1}});
  }
  return loss;
}

// A directory that is gone afterwards.
class Scratch {
 public:
  Scratch() {
    if (!mkdtemp(path_.data())) throw std::runtime_error("cannot make " + path_);
  }
  // std::filesystem::remove_all of a program with libtorch 2 is a broken one of libtorch's.
  ~Scratch() {
    nftw(
        path_.c_str(), [](const char* path, const struct stat*, int, FTW*) { return remove(path); },
        16, FTW_DEPTH | FTW_PHYS);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/weft_tutorial_XXXXXX";
};

void save_and_resume() {
  const Scratch directory;
  const double whole = train_up_to(35, directory.path());  // saves after 10, 20 and 30 steps
  const double again = train_up_to(35, directory.path());  // begins at 30
  claim(whole == again, "the resumed run ends where the first one did");
}

}  // namespace

int run_worker(int rank, int) {
  weft::init_rpc(rank == 0 ? "trainer" : "ps");
  if (rank == 0) {
    make_calls();
    use_objects();
    differentiate();
    train();
    save_and_resume();
  }
  weft::shutdown();  // serves until nobody needs this worker any more
  return 0;
}

int main(int argc, char** argv) { return weft::launch(argc, argv, 2, run_worker); }

// The C++ worker that the client in another language forms a group with: rank 0 of two.
//
//   wire_client_worker file:///path
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/Functions.h>

#include "weft/current_call.h"
#include "weft/rpc.h"
#include "weft/rref.h"

namespace demo {

struct Sample {
  std::string name;
  std::vector<double> values;
};

int64_t add(int64_t a, int64_t b) { return a + b; }

std::string greet(const std::string& name) { return "hello, " + name; }

std::vector<double> scaled(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

Sample scaled_sample(Sample sample, double factor) {
  return {sample.name + " scaled", scaled(std::move(sample.values), factor)};
}

// The other kinds of values, sent back as they came.
using Mixed = std::map<std::string, std::variant<bool, std::optional<Sample>, std::vector<bool>>>;
Mixed mirror(Mixed mixed) { return mixed; }

at::Tensor doubled(const at::Tensor& tensor) { return tensor * 2; }

void fail(const std::string& why) { throw std::out_of_range(why); }

// Whether the caller gave it up.
bool wait_for_cancel() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!weft::current_call::cancelled() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return weft::current_call::cancelled();
}

class Counter {
 public:
  explicit Counter(int64_t start) : value_(start) { ++alive_; }
  ~Counter() { --alive_; }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  int64_t add(int64_t by) { return value_ += by; }
  std::string label(const std::string& before) const { return before + std::to_string(value_); }
  static int64_t alive() { return alive_; }

 private:
  static inline std::atomic<int64_t> alive_{0};
  std::atomic<int64_t> value_;
};

int64_t counters_alive() { return Counter::alive(); }

// A reference that the client did not create.
weft::RRef<Counter> lend(int64_t start) { return weft::remote<Counter>("worker", start); }

// Runs on the client alone.
int64_t square(int64_t) { throw std::logic_error("this is the client's"); }

// A program serves the constructors and methods that its code uses, whether or not it ever does.
[[maybe_unused]] void use_counter() {
  const auto counter = weft::remote<Counter>("client", int64_t{});
  counter.rpc_sync<&Counter::add>(int64_t{});
  counter.rpc_sync<&Counter::label>(std::string());
}

}  // namespace demo

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

void run(const char* place) {
  weft::expose<demo::add>();
  weft::expose<demo::greet>();
  weft::expose<demo::scaled>();
  weft::expose<demo::scaled_sample>("scale a sample");
  weft::expose<demo::mirror>();
  weft::expose<demo::doubled>();
  weft::expose<demo::fail>();
  weft::expose<demo::wait_for_cancel>();
  weft::expose<demo::counters_alive>();
  weft::expose<demo::lend>();
  weft::expose<demo::square>("client.square");

  weft::Options options;
  options.rank = 0;
  options.world_size = 2;
  options.init_method = place;
  options.rref_lease = std::chrono::seconds(8);
  // Often, so that the client is pinged; patient, so that a loaded machine is not taken for dead.
  options.heartbeat_interval = std::chrono::milliseconds(50);
  options.suspect_after = std::chrono::seconds(60);
  options.dead_after = std::chrono::seconds(120);
  weft::init_rpc("worker", options);

  require(weft::rpc_sync<demo::square>("client", 12) == 144, "the client computes no squares");
  require(weft::shutdown().lost_workers.empty(), "the client did not leave with the group");
  require(demo::Counter::alive() == 0, "a counter was not destroyed");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s file:///path\n", argv[0]);
    return 2;
  }
  run(argv[1]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

// Many neighbours, each of which sends tensors of 1 MiB to all others at the same time.
// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/neg.h>
#include <fmt/format.h>

#include "arena/arena.h"
#include "campaigns.h"
#include "exchange.h"
#include "weft/rpc.h"

namespace weft::neighbours {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kElements = 256 * 1024;

// In KiB: without what is shared, and what is shared, each page counted in all that have used it.
std::vector<uint64_t> resident() {
  std::vector<uint64_t> kib(2);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) kib[0] = std::stoull(line.substr(8));
    if (line.starts_with("RssShmem:")) kib[1] = std::stoull(line.substr(9));
  }
  arena::Arena* arena = arena::Arena::existing();
  kib.push_back(arena ? arena->usage().used_bytes / 1024 : 0);
  return kib;
}

uint64_t send_to_all(const std::vector<std::string>& others, uint64_t round) {
  const at::Tensor tensor = at::arange(kElements, at::kFloat) + static_cast<double>(round % 1000);
  std::vector<Future<at::Tensor>> calls;
  for (const std::string& to : others) calls.push_back(rpc_async<negate>(to, tensor));
  const at::Tensor expected = at::neg(tensor);
  uint64_t wrong = 0;
  for (const Future<at::Tensor>& call : calls) wrong += !at::equal(call.wait(), expected);
  return wrong;
}

struct Result {
  uint64_t wrong = 0;
  uint64_t rounds = 0;
  std::vector<std::vector<uint64_t>> memory;  // at a tenth, at half, at the end
};

Result run_worker(const std::vector<std::string>& others, std::chrono::duration<double> time) {
  Result result;
  const auto began = Clock::now();
  for (const double part : {0.1, 0.5, 1.0}) {
    while (Clock::now() - began < time * part) result.wrong += send_to_all(others, result.rounds++);
    result.memory.push_back(resident());
  }
  return result;
}

// Of all workers, in MiB.
bool print(const std::map<std::string, Result>& results) {
  uint64_t wrong = 0, rounds = 0;
  std::vector<std::vector<uint64_t>> sums(3, std::vector<uint64_t>(3));
  for (const auto& [name, result] : results) {
    wrong += result.wrong;
    rounds += result.rounds;
    for (size_t i = 0; i < 3; ++i) {
      for (size_t k = 0; k < 3; ++k) sums[i][k] += result.memory[i][k];
    }
  }
  fmt::print("{} workers, {} calls, {} wrong\n", results.size(), rounds * (results.size() - 1),
             wrong);
  for (size_t i = 0; i < 3; ++i) {
    fmt::print("after {} %: {} MiB resident, {} MiB of shared pages, {} MiB of arenas in use\n",
               i == 0 ? 10 : 50 * i, sums[i][0] / 1024, sums[i][1] / 1024, sums[i][2] / 1024);
  }
  return wrong == 0;
}

}  // namespace

int run_all_to_all(int argc, char** argv, int workers, uint64_t seconds) {
  return launch(argc, argv, workers, [&](int rank, int) {
    at::set_num_threads(1);
    init_rpc("w" + std::to_string(rank));
    std::vector<std::string> others;
    for (int to = 0; to < workers; ++to) {
      if (to != rank) others.push_back("w" + std::to_string(to));
    }
    barrier();
    const Result result = run_worker(others, std::chrono::duration<double>(seconds));
    const auto results = all_gather(result, {}, std::chrono::seconds(120));
    const bool good = rank != 0 || print(results);
    shutdown();
    return good ? 0 : 1;
  });
}

}  // namespace weft::neighbours

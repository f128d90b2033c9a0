// SPDX-License-Identifier: BSD-3-Clause
#include "senders.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <sstream>

#include "nursery.h"

namespace weft::neighbours {

namespace {

using namespace std::chrono_literals;
constexpr size_t kMostBytes = size_t{64} << 20;

std::atomic<bool> stopping{false};

}  // namespace

void stop_senders() { stopping = true; }
void allow_senders() { stopping = false; }

Senders::Senders(Agent& agent, int rank, uint64_t seed, Tally& tally) {
  for (int to = 0; to < kSendingWorkers; ++to) {
    if (to == rank) continue;
    threads_.emplace_back([&agent, &tally, to, seed] {
      std::mt19937_64 random(seed + static_cast<uint64_t>(to));
      while (!stopping && exchange(agent, "w" + std::to_string(to), random, kMostBytes, tally)) {
      }
    });
  }
}

Senders::~Senders() {
  for (std::thread& thread : threads_) thread.join();
}

bool is_good(const Tally& tally) {
  return tally.wrong == 0 && tally.strange == 0 && tally.too_late == 0;
}

void run_sender(const std::string& arguments) {
  std::istringstream in(arguments);
  std::string role, file;
  int rank = 0;
  uint64_t seed = 0;
  in >> role >> file >> rank >> seed;
  signal(SIGUSR1, [](int) { stop_senders(); });
  static std::atomic<bool> stood_still{false};
  signal(SIGCONT, [](int) { stood_still = true; });
  Tally tally;
  {
    const std::unique_ptr<Agent> agent = join(file, rank, kSendingWorkers);
    const Senders senders(*agent, rank, seed, tally);
    while (!stopping) std::this_thread::sleep_for(1ms);
  }
  const bool empty = arena_is_empty();
  if (stood_still) tally.too_late = 0;  // as this process counts
  Nursery::report(is_good(tally) && empty ? "good" : text(tally));
}

}  // namespace weft::neighbours

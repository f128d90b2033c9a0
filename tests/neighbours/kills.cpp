// One of three neighbours is killed while all send each other tensors of up to 64 MiB.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/temporary_directory.h"
#include "campaigns.h"
#include "exchange.h"
#include "weft/error.h"

namespace weft::neighbours {

namespace {

using namespace std::chrono_literals;
constexpr int kWorkers = 3;
constexpr size_t kMostBytes = size_t{64} << 20;

std::atomic<bool> stopping{false};
void stop() { stopping = true; }

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

// A thread for each other worker sends to it until the worker is lost or all are told to stop.
class Senders {
 public:
  Senders(Agent& agent, int rank, uint64_t seed, Tally& tally) {
    for (int to = 0; to < kWorkers; ++to) {
      if (to == rank) continue;
      threads_.emplace_back([&agent, &tally, to, seed] {
        std::mt19937_64 random(seed + static_cast<uint64_t>(to));
        while (!stopping && exchange(agent, "w" + std::to_string(to), random, kMostBytes, tally)) {
        }
      });
    }
  }
  ~Senders() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

bool is_good(const Tally& tally) {
  return tally.wrong == 0 && tally.strange == 0 && tally.too_late == 0;
}

bool run_round(Nursery& nursery, uint64_t seed, Tally& tally) {
  const base::TemporaryDirectory directory("weft-kills");
  const std::string file = directory.path() + "/group";
  std::mt19937_64 random(seed);
  std::vector<pid_t> others;
  for (int rank = 1; rank < kWorkers; ++rank)
    others.push_back(nursery.start(fmt::format("kills {} {} {}", file, rank, random())));
  const size_t killed = random() % others.size();
  stopping = false;
  {
    const std::unique_ptr<Agent> agent = join(file, 0, kWorkers);
    {
      const Senders senders(*agent, 0, random(), tally);
      std::this_thread::sleep_for(std::chrono::microseconds(20'000 + random() % 150'000));
      kill(others[killed], SIGKILL);
      std::this_thread::sleep_for(50ms);  // the other two go on
      stopping = true;
    }
    try {
      agent->sync<stop>(Destination("w" + std::to_string(2 - killed), 20s));
    } catch (const Error& error) {
      fmt::print("the other one is lost too: {}\n", error.what());
      return false;
    }
    agent->shutdown_now();
  }
  const auto said = nursery.heard(others[1 - killed], 60s);
  if (said != "good") fmt::print("the other one said: {}\n", said.value_or("nothing"));
  return said == "good" && is_good(tally) && arena_is_empty();
}

}  // namespace

void run_killed(const std::string& arguments) {
  std::istringstream in(arguments);
  std::string campaign, file;
  int rank = 0;
  uint64_t seed = 0;
  in >> campaign >> file >> rank >> seed;
  Tally tally;
  {
    const std::unique_ptr<Agent> agent = join(file, rank, kWorkers);
    const Senders senders(*agent, rank, seed, tally);
    while (!stopping) std::this_thread::sleep_for(1ms);
  }
  const bool empty = arena_is_empty();
  Nursery::report(is_good(tally) && empty ? "good" : text(tally));
}

bool run_kills(Nursery& nursery, uint64_t kills, uint64_t seed) {
  Tally tally;
  size_t descriptors = 0;
  for (uint64_t i = 0; i < kills; ++i) {
    if (!run_round(nursery, seed + i, tally)) {
      fmt::print("seed {}: {}\n", seed + i, text(tally));
      return false;
    }
    if (i == 0) descriptors = open_descriptors();
    if (i % 50 == 49) {
      fmt::print("{} kills: {}\n", i + 1, text(tally));
      fflush(stdout);
    }
  }
  fmt::print("{} kills: {}\n", kills, text(tally));
  fmt::print("descriptors after the first round {}, after the last {}\n", descriptors,
             open_descriptors());
  return open_descriptors() <= descriptors;
}

}  // namespace weft::neighbours

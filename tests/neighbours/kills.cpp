// One of three neighbours is killed while all send each other tensors of up to 64 MiB.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/temporary_directory.h"
#include "campaigns.h"
#include "exchange.h"
#include "senders.h"
#include "weft/error.h"

namespace weft::neighbours {

namespace {

using namespace std::chrono_literals;

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

bool run_round(Nursery& nursery, uint64_t seed, Tally& tally) {
  const base::TemporaryDirectory directory("weft-kills");
  const std::string file = directory.path() + "/group";
  std::mt19937_64 random(seed);
  std::vector<pid_t> others;
  for (int rank = 1; rank < kSendingWorkers; ++rank)
    others.push_back(nursery.start(fmt::format("senders {} {} {}", file, rank, random())));
  const size_t killed = random() % others.size();
  allow_senders();
  {
    const std::unique_ptr<Agent> agent = join(file, 0, kSendingWorkers);
    {
      const Senders senders(*agent, 0, random(), tally);
      std::this_thread::sleep_for(std::chrono::microseconds(20'000 + random() % 150'000));
      kill(others[killed], SIGKILL);
      std::this_thread::sleep_for(50ms);  // the other two go on
      stop_senders();
    }
    try {
      agent->sync<stop_senders>(Destination("w" + std::to_string(2 - killed), 20s));
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

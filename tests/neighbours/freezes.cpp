// One of three neighbours is stopped for 20 s while all send each other tensors of up to 64 MiB.
// SPDX-License-Identifier: BSD-3-Clause
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <system_error>
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
using Clock = std::chrono::steady_clock;
constexpr auto kFrozen = 20s;
constexpr auto kNoticed = 10s;         // silence of 8 s makes a member dead
constexpr uint64_t kWhileFrozen = 20;  // calls at least between the other two

bool has_stopped(pid_t process) {
  std::error_code gone;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", gone)) {
    std::ifstream in(thread.path() / "stat");
    std::string line;
    std::getline(in, line);
    const size_t name_end = line.rfind(") ");
    if (name_end == std::string::npos || line[name_end + 2] != 'T') return false;
  }
  return true;  // also one that is gone, which others notice
}

void freeze(pid_t process) {
  kill(process, SIGSTOP);
  while (!has_stopped(process)) std::this_thread::sleep_for(1ms);
}

// Whether a call to the frozen worker, whose deadline is far away, ends when the worker counts as
// dead.
bool is_noticed(Agent& agent, const std::string& frozen) {
  const auto began = Clock::now();
  try {
    agent.sync<echo>(Destination(frozen, 60s), 1);
    fmt::print("a frozen worker answered\n");
    return false;
  } catch (const Error& error) {
    const auto took = Clock::now() - began;
    fmt::print("after {:.1f} s: {}\n", std::chrono::duration<double>(took).count(), error.what());
    // Unavailable: it needed a new connection, which a frozen worker does not answer.
    const ErrorCode code = error.code();
    return (code == ErrorCode::kPeerLost || code == ErrorCode::kUnavailable) && took < kNoticed;
  }
}

bool says_good(Nursery& nursery, pid_t process, const char* who) {
  const auto said = nursery.heard(process, 60s);
  if (said != "good") fmt::print("{} said: {}\n", who, said.value_or("nothing"));
  return said == "good";
}

bool run_round(Nursery& nursery, uint64_t seed, Tally& tally) {
  const base::TemporaryDirectory directory("weft-freezes");
  const std::string file = directory.path() + "/group";
  std::mt19937_64 random(seed);
  std::vector<pid_t> others;
  for (int rank = 1; rank < kSendingWorkers; ++rank)
    others.push_back(nursery.start(fmt::format("senders {} {} {}", file, rank, random())));
  const size_t frozen = random() % others.size();
  bool good = true;
  allow_senders();
  {
    const std::unique_ptr<Agent> agent = join(file, 0, kSendingWorkers);
    {
      const Senders senders(*agent, 0, random(), tally);
      std::this_thread::sleep_for(std::chrono::microseconds(20'000 + random() % 150'000));
      freeze(others[frozen]);
      const auto thaw_at = Clock::now() + kFrozen;
      const uint64_t before = tally.right;
      good = is_noticed(*agent, "w" + std::to_string(frozen + 1));
      std::this_thread::sleep_until(thaw_at);
      fmt::print("{} calls of the other two meanwhile\n", tally.right - before);
      good = good && tally.right - before >= kWhileFrozen;
      kill(others[frozen], SIGCONT);
      std::this_thread::sleep_for(1s);  // it finds out what has become of it
      stop_senders();
    }
    agent->sync<stop_senders>(Destination("w" + std::to_string(2 - frozen), 20s));
    kill(others[frozen], SIGUSR1);
    good = says_good(nursery, others[frozen], "the frozen one") && good;
    good = says_good(nursery, others[1 - frozen], "the other one") && good;
    agent->shutdown_now();
  }
  return good && is_good(tally) && arena_is_empty();
}

}  // namespace

bool run_freezes(Nursery& nursery, uint64_t freezes, uint64_t seed) {
  Tally tally;
  for (uint64_t i = 0; i < freezes; ++i) {
    if (!run_round(nursery, seed + i, tally)) {
      fmt::print("seed {}: {}\n", seed + i, text(tally));
      return false;
    }
    fmt::print("{} freezes: {}\n", i + 1, text(tally));
    fflush(stdout);
  }
  return true;
}

}  // namespace weft::neighbours

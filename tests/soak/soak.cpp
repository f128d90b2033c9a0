// Everything at once, for long, with faults: calls, references, autograd, steps, all_reduce and
// checkpoints over several processes whose connections, over TCP and through shared memory, are
// killed and which are frozen at random.
//
//   weft_soak MINUTES [SEED]
//
// Ends with 0 if every value was right and every call ran as often as its outcome says. Prints what
// each worker used at the start and at the end, both at rest. Needs root for killing connections.
// SPDX-License-Identifier: BSD-3-Clause
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "faults.h"
#include "loads.h"
#include "usage.h"
#include "weft/rpc.h"
#include "weft/rref_census.h"

namespace weft::soak {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 4;
constexpr auto kWarmUp = 20s;  // pools, caches and threads are there afterwards

double minutes = 1;
unsigned seed = 1;

pid_t process_id() { return ::getpid(); }
void stop_loads() { stopping = true; }

struct Summary {
  uint64_t findings = 0;
  std::map<std::string, uint64_t> tally;
  std::vector<uint64_t> before, after;  // resident, malloc, descriptors, threads
  double p50_us = 0, p99_us = 0;
};

std::vector<uint64_t> flat(const Usage& usage) {
  return {usage.resident_kib,   usage.file_kib,    usage.malloc_kib,
          usage.malloc_has_kib, usage.descriptors, usage.threads};
}

// All loads of this worker, until stop_loads() is called; returns when all of them have ended.
void run_loads(int rank) {
  stopping = false;
  std::vector<std::thread> threads;
  for (const auto load : {&make_calls, &make_bursts, &use_references, &train, &reduce})
    threads.emplace_back([load, rank] { load(rank, kWorkers); });
  for (std::thread& thread : threads) thread.join();
}

// On worker 0: faults for `length`, then the end of the loads everywhere.
void direct(Clock::duration length, bool with_faults) {
  std::vector<pid_t> workers;
  for (int rank = 0; rank < kWorkers; ++rank) workers.push_back(rpc_sync<process_id>(rank));
  Faults faults(workers, ::getpid(), seed);
  std::mt19937 random(seed);
  const auto end = Clock::now() + length;
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + random() % 1800));
    if (!with_faults) continue;
    if (random() % 10 == 0) {
      faults.freeze_a_worker();
    } else {
      faults.kill_a_connection();
    }
  }
  tally().add("connections killed", faults.kills());
  tally().add("neighbours cut off", faults.kills_between_neighbours());
  tally().add("workers frozen", faults.freezes());
  for (int rank = 0; rank < kWorkers; ++rank) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      try {
        rpc_sync<stop_loads>(rank);
        break;
      } catch (const Error&) {
        std::this_thread::sleep_for(100ms);  // a connection that was killed last
      }
    }
  }
}

void run_for(int rank, Clock::duration length, bool with_faults) {
  barrier({}, 120s);
  std::thread director;
  if (rank == 0) director = std::thread([&] { direct(length, with_faults); });
  run_loads(rank);
  if (director.joinable()) director.join();
}

// Nothing is under way, objects without references are gone, and free memory is given back.
Usage usage_at_rest() {
  const auto limit = Clock::now() + 60s;
  while (objects_alive() > 0 && Clock::now() < limit) std::this_thread::sleep_for(50ms);
  if (objects_alive() > 0) {
    findings().add(fmt::format("{} objects have no reference and are alive", objects_alive()));
  }
  barrier({}, 120s);
  std::this_thread::sleep_for(12s);  // longer than leases, idle threads and kept values live
  ::malloc_trim(0);
  return usage_now();
}

std::string row(const char* name, const std::vector<uint64_t>& before,
                const std::vector<uint64_t>& after, size_t column) {
  const auto from = static_cast<double>(before[column]), to = static_cast<double>(after[column]);
  return fmt::format("  {:<16} {:>10} -> {:>10}  {:+.1f} %\n", name, before[column], after[column],
                     from > 0 ? 100 * (to - from) / from : 0.0);
}

void print(const std::string& worker, const Summary& summary) {
  std::string text = fmt::format("{}: {} findings\n", worker, summary.findings);
  text += row("RSS KiB", summary.before, summary.after, 0);
  text += row("  of files", summary.before, summary.after, 1);
  text += row("malloc KiB", summary.before, summary.after, 2);
  text += row("  of arenas", summary.before, summary.after, 3);
  text += row("descriptors", summary.before, summary.after, 4);
  text += row("threads", summary.before, summary.after, 5);
  text +=
      fmt::format("  round trip p50 {:.0f} us, p99 {:.0f} us\n", summary.p50_us, summary.p99_us);
  for (const auto& [what, count] : summary.tally) text += fmt::format("  {:<28} {}\n", what, count);
  fmt::print("{}", text);
}

int run_worker(int rank, int) {
  Options options;
  // The last worker and each other speak over TCP, the others through shared memory.
  if (rank == kWorkers - 1) options.transport = Options::Transport::kTcp;
  init_rpc(worker_name(rank), options);
  run_for(rank, kWarmUp, /*with_faults=*/false);
  Summary summary;
  summary.before = flat(usage_at_rest());
  run_for(rank,
          std::chrono::duration_cast<Clock::duration>(
              std::chrono::duration<double, std::ratio<60>>(minutes)),
          /*with_faults=*/true);
  barrier({}, 120s);
  audit_calls(rank, kWorkers);
  summary.after = flat(usage_at_rest());
  summary.findings = findings().count();
  summary.tally = tally().counts();
  for (const PeerStats& peer : debug_info().peers) {
    summary.p50_us = std::max(summary.p50_us, peer.round_trip.p50_us);
    summary.p99_us = std::max(summary.p99_us, peer.round_trip.p99_us);
  }
  uint64_t all = 0;
  for (const auto& [worker, each] : all_gather(summary, {}, 120s)) {
    if (rank == 0) print(worker, each);
    all += each.findings;
  }
  const auto lost = shutdown().lost_workers;
  if (rank == 0) fmt::print("soak: {} findings, {} workers lost\n", all, lost.size());
  return all == 0 && lost.empty() ? 0 : 1;
}

}  // namespace
}  // namespace weft::soak

int main(int argc, char** argv) {
  using namespace weft::soak;
  if (argc < 2 || (minutes = std::atof(argv[1])) <= 0) {
    fmt::print(stderr, "usage: weft_soak MINUTES [SEED]\n");
    return 2;
  }
  if (argc > 2) seed = static_cast<unsigned>(std::atoi(argv[2]));
  return weft::launch(argc, argv, kWorkers, run_worker);
}

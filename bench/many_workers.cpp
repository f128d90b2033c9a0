// Rows 33 and 34: a group of hundreds of workers on one host. How long they take to meet, to call
// each other for the first time, and to shut down; what they use while they are idle.
// SPDX-License-Identifier: BSD-3-Clause

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_directory.h"
#include "support/program.h"
#include "support/report.h"
#include "support/samples.h"
#include "support/system_error.h"
#include "weft/rpc.h"
#include "weft/rref.h"

namespace bench {
namespace {

constexpr size_t kMostWorkers = 1024;
constexpr size_t kStorePort = 29611;

struct Held {
  int64_t value = 1;
};
void touch() {}

// The moments of one worker's life, by the clock that all processes share.
struct Times {
  double init_began, met, gathered, calls_began, called, references_made;
  double shutdown_began, ended;
  double idle_cpu_percent;
};

// What the workers and the program that starts them share.
struct Board {
  Times times[kMostWorkers];
  std::atomic<int> warnings;
  std::atomic<int> failures;
  double noticed_after;  // the frozen worker, by rank 0
};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Group {
  size_t size;
  std::string init_method;
  std::chrono::seconds idle;  // zero: idleness and freezing are not measured
};

std::string name_of(size_t rank) { return "w" + std::to_string(rank); }

double idle_percent(std::chrono::seconds window) {
  std::this_thread::sleep_for(std::chrono::seconds(2));  // connections settle
  const double cpu = cpu_seconds(), began = now();
  std::this_thread::sleep_for(window);  // this is what is measured, not a wait for something
  return 100 * (cpu_seconds() - cpu) / (now() - began);
}

// Rank 0 calls the last worker, which has been stopped, and waits for the verdict.
double time_to_notice(size_t frozen) {
  const double began = now();
  try {
    weft::rpc_sync<touch>({static_cast<int>(frozen), std::chrono::seconds(60)});
    return -1;
  } catch (const weft::Error& error) {
    if (error.code() != weft::ErrorCode::kPeerLost) std::fprintf(stderr, "%s\n", error.what());
    return now() - began;
  }
}

void work(const Group& group, size_t rank, Board& board) {
  weft::set_log_sink([&board, rank](weft::LogLevel level, std::string_view line) {
    if (level < weft::LogLevel::kWarning) return;
    if (board.warnings.fetch_add(1) < 5)
      std::fprintf(stderr, "rank %zu: %.*s\n", rank, static_cast<int>(line.size()), line.data());
  });
  weft::Options options;
  options.rank = static_cast<int>(rank);
  options.world_size = static_cast<int>(group.size);
  options.init_method = group.init_method;
  options.init_timeout = std::chrono::seconds(120);
  Times& times = board.times[rank];
  times.init_began = now();
  weft::init_rpc(name_of(rank), options);
  times.met = now();
  weft::all_gather<int64_t>(static_cast<int64_t>(rank));
  times.gathered = now();
  weft::barrier();
  times.calls_began = now();
  for (size_t i = 1; i < group.size; ++i)
    weft::rpc_sync<touch>(static_cast<int>((rank + i) % group.size));
  times.called = now();
  weft::barrier();
  if (group.idle.count() > 0) {
    std::vector<weft::RRef<Held>> held;
    for (size_t i = 1; i < group.size; ++i)
      held.push_back(weft::remote<Held>(static_cast<int>((rank + i) % group.size)));
    weft::barrier();
    times.references_made = now();
    times.idle_cpu_percent = idle_percent(group.idle);
    weft::barrier();
    if (rank == group.size - 1) raise(SIGSTOP);
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      board.noticed_after = time_to_notice(group.size - 1);
    }
  }
  times.shutdown_began = now();
  weft::shutdown(group.idle.count() > 0 ? weft::Shutdown::kNow : weft::Shutdown::kGraceful);
  times.ended = now();
}

// Workers are forked from this process, which has loaded libtorch and started nothing.
std::vector<pid_t> start(const Group& group, Board& board) {
  std::vector<pid_t> workers;
  for (size_t rank = 0; rank < group.size; ++rank) {
    const pid_t pid = check_system(fork(), "fork");
    if (pid == 0) {
      try {
        work(group, rank, board);
      } catch (const std::exception& error) {
        if (board.failures.fetch_add(1) < 3)
          std::fprintf(stderr, "rank %zu: %s\n", rank, error.what());
        _exit(1);
      }
      _exit(0);
    }
    workers.push_back(pid);
  }
  return workers;
}

template <typename Of>
double latest(const Board& board, size_t count, Of of) {
  double last = 0;
  for (size_t i = 0; i < count; ++i) last = std::max(last, of(board.times[i]));
  return last;
}

struct Outcome {
  double meet, gather, all_to_all, shutdown, idle_most, noticed;
  int warnings, failures;
};

Outcome run(const Group& group) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check_system(memory == MAP_FAILED ? -1 : 0, "mmap");
  Board& board = *new (memory) Board{};
  const std::vector<pid_t> workers = start(group, board);
  const bool freezes = group.idle.count() > 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    if (freezes && i == workers.size() - 1)
      kill(workers[i], SIGKILL);  // stopped, and of no more use
    while (waitpid(workers[i], nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  const size_t n = group.size;
  Outcome outcome{};
  const double joined = latest(board, n, [](const Times& t) { return t.init_began; });
  const double met = latest(board, n, [](const Times& t) { return t.met; });
  const double gathered = latest(board, n, [](const Times& t) { return t.gathered; });
  const double calls = latest(board, n, [](const Times& t) { return t.calls_began; });
  outcome.meet = met - joined;
  outcome.gather = gathered - met;
  outcome.all_to_all = latest(board, n, [](const Times& t) { return t.called; }) - calls;
  outcome.shutdown = latest(board, n, [](const Times& t) { return t.ended; }) -
                     latest(board, n, [](const Times& t) { return t.shutdown_began; });
  outcome.idle_most = latest(board, n, [](const Times& t) { return t.idle_cpu_percent; });
  outcome.noticed = board.noticed_after;
  outcome.warnings = board.warnings;
  outcome.failures = board.failures;
  munmap(memory, sizeof(Board));
  return outcome;
}

void report(int row, size_t workers, const char* what, const char* unit, double bar, double value,
            const Outcome& outcome) {
  print({row,
         std::to_string(workers) + " workers: " + what,
         "none",
         unit,
         value_at_most(bar),
         {},
         {value},
         std::to_string(outcome.warnings) + " warnings, " + std::to_string(outcome.failures) +
             " workers failed"});
}

void measure(const Settings& settings) {
  print_facts();
  if (settings.anchors_only) {
    for (const int row : {33, 34}) {
      if (settings.wants(row))
        print_not_measured(row, "a group of many workers", "there is nothing to compare with",
                           Absence::kAllowed);
    }
    return;
  }
  const bool many_cpus = std::thread::hardware_concurrency() >= 8;
  const char* wanted = std::getenv("WEFT_BENCH_WORKERS");
  const size_t workers = wanted ? std::min<size_t>(kMostWorkers, std::strtoul(wanted, nullptr, 10))
                         : settings.quick ? 8
                         : many_cpus      ? 256
                                          : 128;
  const weft::base::TemporaryDirectory directory("weft-many-workers");
  if (settings.wants(33)) {
    const Outcome outcome =
        run({workers, "tcp://127.0.0.1:" + std::to_string(kStorePort), std::chrono::seconds(0)});
    report(33, workers, "meet", "s", many_cpus ? 10 : 45, outcome.meet, outcome);
    report(33, workers, "first all_gather", "s", many_cpus ? 5 : 45, outcome.gather, outcome);
    report(33, workers, "first calls, all to all", "s", many_cpus ? 5 : 45, outcome.all_to_all,
           outcome);
    report(33, workers, "shutdown", "s", many_cpus ? 3 : 45, outcome.shutdown, outcome);
  }
  if (settings.wants(34)) {
    const Outcome outcome = run({workers, "file://" + directory.path() + "/store",
                                 std::chrono::seconds(settings.quick ? 1 : 10)});
    report(34, workers, "idle, each holds a reference on each other: the worst", "% of a core", 1,
           outcome.idle_most, outcome);
    report(34, workers, "a frozen one is noticed after", "s", 8.5, outcome.noticed, outcome);
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_program(argc, argv, {}, bench::measure); }

// SPDX-License-Identifier: BSD-3-Clause
#include "fault_scene.h"

#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

namespace weft::test {

namespace {

struct Holding {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t held = 0;
  int64_t releases = 0;
};
Holding& holding() {
  static auto* leaked = new Holding;
  return *leaked;
}

std::atomic<int64_t> swallows{0};

Promise<void>& the_end() {
  static auto* leaked = new Promise<void>;
  return *leaked;
}
void scene_is_over() { the_end().set_value(); }

[[noreturn]] void fail(const Ending& ending, const std::string& wanted,
                       const std::source_location& where) {
  std::fprintf(
      stderr,
      "%s:%d: wanted %s; ended after %.1f ms, %.1f of them with a CPU withheld, with %s%s\n",
      where.file_name(), static_cast<int>(where.line()), wanted.c_str(),
      1e-6 * static_cast<double>(ending.took.count()),
      1e-6 * static_cast<double>(ending.stalled.count()),
      ending.error ? ending.error->what() : "a value",
      !ending.error                  ? ""
      : ending.error->may_have_run() ? " (may have run)"
                                     : " (did not run)");
  std::fflush(nullptr);
  _exit(3);
}

// The state letter of every thread; empty when the process is gone.
std::string thread_states(pid_t process) {
  std::string states;
  std::error_code gone;
  const auto tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream file(task.path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');
    if (name_end != std::string::npos) states += line.at(name_end + 2);
  }
  return states;
}

std::vector<int> stream_sockets(const std::vector<int>& domains) {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int domain = 0, type = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
      continue;
    }
    const bool wanted = std::find(domains.begin(), domains.end(), domain) != domains.end();
    if (wanted && type == SOCK_STREAM) sockets.push_back(fd);
  }
  return sockets;
}

bool listens(int socket) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes == 1;
}

}  // namespace

std::string worker(int rank) { return "worker" + std::to_string(rank); }

Options impatient() {
  Options options;
  options.heartbeat_interval = 50ms * kSlowness;
  options.suspect_after = 200ms * kSlowness;
  options.dead_after = 600ms * kSlowness;
  return options;
}

int serve() {
  the_end().future().wait();
  shutdown();
  return 0;
}

int end_scene() {
  for (const WorkerInfo& other : current_agent().members()) {
    if (other != get_worker_info()) rpc_sync<scene_is_over>(other);
  }
  const ShutdownReport report = shutdown();
  REQUIRE_THAT(report.lost_workers.empty());
  return 0;
}

bool scene_succeeds(Workers& workers) {
  // When rank 0 failed, the others wait for an end of the scene that will not come.
  const bool ended = workers.wait(0) == 0;
  return workers.all_succeed(ended ? 20s : 1ms);
}

Ending ending_since(std::chrono::steady_clock::time_point start, std::optional<Error> error) {
  const auto end = std::chrono::steady_clock::now();
  return {std::move(error), end - start, stalled_between(start, end)};
}

bool happens_within(milliseconds bound, const std::function<bool()>& condition) {
  const Stopwatch time;
  return eventually(condition) && time.read() <= bound * kSlowness;
}

void require_ending(const Ending& ending, const Expected& expected, std::source_location where) {
  std::string wanted = std::string(name(expected.code)) +
                       (expected.may_have_run ? " (may have run)" : " (did not run)") + " after " +
                       std::to_string(expected.after.count()) + " to " +
                       std::to_string((expected.within * kSlowness).count()) + " ms, naming";
  bool fits = ending.error && ending.error->code() == expected.code &&
              ending.error->may_have_run() == expected.may_have_run &&
              ending.took >= expected.after && ending.took_at_most(expected.within);
  for (const std::string& part : expected.names) {
    wanted += " " + part;
    fits = fits && ending.error->message().find(part) != std::string::npos;
  }
  if (!fits) fail(ending, wanted, where);
}

void require_success(const Ending& ending, milliseconds within, std::source_location where) {
  if (ending.error || !ending.took_at_most(within)) {
    fail(ending, "a value within " + std::to_string((within * kSlowness).count()) + " ms", where);
  }
}

pid_t process_id() { return getpid(); }
int64_t echo(int64_t value) { return value; }

int64_t hold(int64_t value) {
  Holding& at = holding();
  std::unique_lock lock(at.mutex);
  ++at.held;
  at.changed.wait(lock, [&at, mine = at.releases] { return at.releases != mine; });
  --at.held;
  return value;
}

int64_t held() {
  std::lock_guard lock(holding().mutex);
  return holding().held;
}

void let_go() {
  std::lock_guard lock(holding().mutex);
  ++holding().releases;
  holding().changed.notify_all();
}

void swallow(at::Tensor) { ++swallows; }
int64_t swallowed() { return swallows; }

bool freeze(pid_t process) {
  kill(process, SIGSTOP);
  return eventually([process] {
    const std::string states = thread_states(process);
    return !states.empty() && states.find_first_not_of('T') == std::string::npos;
  });
}

void thaw(pid_t process) { kill(process, SIGCONT); }

void break_connections() {
  // Held by copies, so that no number means a connection made meanwhile. By system calls, because
  // to take what another thread may be closing is a race, and here that is the purpose.
  std::vector<long> connected;
  for (const int socket : stream_sockets({AF_INET, AF_UNIX})) {
    if (!listens(socket)) connected.push_back(syscall(SYS_dup, socket));
  }
  for (const long socket : connected) syscall(SYS_shutdown, socket, SHUT_RDWR);
  for (const long socket : connected) syscall(SYS_close, socket);
}

int listening_port() {
  for (const int socket : stream_sockets({AF_INET})) {
    if (!listens(socket)) continue;
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      return ntohs(address.sin_port);
    }
  }
  return -1;
}

size_t resident_bytes(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t memory_now() {
  malloc_trim(0);
  return resident_bytes(getpid());
}

}  // namespace weft::test

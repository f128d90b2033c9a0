// SPDX-License-Identifier: BSD-3-Clause
#include "support/scenario.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "support/process_part.h"
#include "support/sanitizers.h"

namespace weft::test {

namespace {

constexpr int kReleaseDescriptor = 198;  // where a worker reads the test's releases
constexpr int kTellDescriptor = 199;     // where it writes what it tells

std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}

int environment_number(const char* name) { return std::atoi(std::getenv(name)); }

int run_scenario(const std::string& name) {
  try {
    return scenarios().at(name)(environment_number("RANK"), environment_number("WORLD_SIZE"));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scenario %s: %s\n", name.c_str(), error.what());
    return 1;
  }
}

const RegisterProcessPart scenario_part("WEFT_TEST_SCENARIO", [](int, char**) {
  return run_scenario(std::getenv("WEFT_TEST_SCENARIO"));
});

size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}
const size_t threads_before_main = threads_of_this_process();

// A worker that is forked but not executed anew starts a second sooner, for libtorch is loaded. A
// process that has started threads cannot have such workers, nor one whose libraries have read
// another number of threads from the environment, nor one under a sanitizer.
bool may_go_on_without_exec(const Workers::Environment& environment) {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  return kSlowness == 1 && threads && environment.at("OMP_NUM_THREADS") == threads &&
         threads_of_this_process() <= threads_before_main;
}

// What exec would do, but for the descriptors that the worker is given.
void close_descriptors_as_exec_does() {
  std::vector<int> to_close;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::atoi(each.path().filename().c_str());
    const int flags = fcntl(descriptor, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC)) to_close.push_back(descriptor);
  }
  for (const int each : to_close) close(each);
}

}  // namespace

RegisterScenario::RegisterScenario(const char* name, Scenario run) {
  scenarios().emplace(name, std::move(run));
}

void require(bool holds, const char* condition, const char* file, int line) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
  std::fflush(nullptr);
  _exit(3);
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

void wait_for_test() {
  char token;
  if (read(kReleaseDescriptor, &token, 1) != 1) _exit(4);
}

void tell_test(const std::string& line) {
  const std::string text = line + "\n";
  if (write(kTellDescriptor, text.data(), text.size()) < 0) _exit(4);
}

struct Workers::Process {
  pid_t pid = -1;
  int release = -1;
  int tell = -1;
  std::string output_path;
  std::string told;
  bool ended = false;
  int status = -1;

  ~Process() {
    if (!ended && pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    close(release);
    close(tell);
  }

  bool try_wait() {
    if (ended) return true;
    int raw = 0;
    if (waitpid(pid, &raw, WNOHANG) != pid) return false;
    ended = true;
    status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
    return true;
  }

  void read_told() {
    pollfd polled{tell, POLLIN, 0};
    char buffer[4096];
    while (poll(&polled, 1, 0) == 1) {
      const ssize_t n = read(tell, buffer, sizeof buffer);
      if (n <= 0) return;
      told.append(buffer, static_cast<size_t>(n));
    }
  }
};

Workers::Workers(const std::string& scenario, int world_size, const Environment& environment) {
  for (int rank = 0; rank < world_size; ++rank) {
    auto process = std::make_unique<Process>();
    process->output_path = directory_.path() + "/output" + std::to_string(rank);
    int release[2];
    int tell[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, release) != 0 ||
        pipe2(tell, O_CLOEXEC) != 0) {
      throw std::runtime_error("no pipe");
    }
    Environment all = environment;
    all["WEFT_TEST_SCENARIO"] = scenario;
    all["RANK"] = std::to_string(rank);
    all["WORLD_SIZE"] = std::to_string(world_size);
    all.try_emplace("WEFT_RENDEZVOUS", "file://" + directory_.path() + "/store");
    all.try_emplace("OMP_NUM_THREADS", "1");
    const bool without_exec = may_go_on_without_exec(all);
    const pid_t parent = getpid();
    std::fflush(nullptr);  // or the worker prints it once more
    process->pid = fork();
    if (process->pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(5);
      const int out = open(process->output_path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      dup2(out, STDOUT_FILENO);
      dup2(out, STDERR_FILENO);
      dup2(release[0], kReleaseDescriptor);
      dup2(tell[1], kTellDescriptor);
      for (const auto& [name, value] : all) setenv(name.c_str(), value.c_str(), 1);
      if (without_exec) {
        close_descriptors_as_exec_does();
        std::exit(run_scenario(scenario));
      }
      execl("/proc/self/exe", "weft_test_worker", nullptr);
      _exit(127);
    }
    close(release[0]);
    close(tell[1]);
    process->release = release[1];
    process->tell = tell[0];
    processes_.push_back(std::move(process));
  }
}

Workers::~Workers() { processes_.clear(); }

pid_t Workers::pid(int rank) const { return processes_.at(static_cast<size_t>(rank))->pid; }
void Workers::signal(int rank, int number) { kill(pid(rank), number); }

int Workers::wait(int rank, std::chrono::milliseconds bound) {
  Process& process = *processes_.at(static_cast<size_t>(rank));
  return eventually([&] { return process.try_wait(); }, bound) ? process.status : -1;
}

bool Workers::all_succeed(std::chrono::milliseconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  bool all = true;
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    const int status = wait(static_cast<int>(rank), std::max(left, std::chrono::milliseconds(1)));
    if (status == 0) continue;
    all = false;
    std::cerr << "worker " << rank << " ended with " << status << ":\n"
              << output(static_cast<int>(rank)) << "\n";
  }
  return all;
}

bool Workers::heard(int rank, const std::string& line, std::chrono::milliseconds bound) {
  Process& process = *processes_.at(static_cast<size_t>(rank));
  const bool found = eventually(
      [&] {
        process.read_told();
        return ("\n" + process.told).find("\n" + line + "\n") != std::string::npos;
      },
      bound);
  if (!found)
    std::cerr << "worker " << rank << " did not say \"" << line << "\":\n" << output(rank);
  return found;
}

void Workers::release(int rank) {
  Process& process = *processes_.at(static_cast<size_t>(rank));
  // No SIGPIPE, which would end all tests of this program.
  if (send(process.release, "x", 1, MSG_NOSIGNAL) != 1) {
    throw std::runtime_error("worker " + std::to_string(rank) + " has ended:\n" + output(rank));
  }
}

std::string Workers::output(int rank) {
  std::ifstream file(processes_.at(static_cast<size_t>(rank))->output_path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace weft::test

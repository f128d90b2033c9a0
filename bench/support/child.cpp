// SPDX-License-Identifier: BSD-3-Clause
#include "support/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "support/system_error.h"

namespace bench {
namespace {

constexpr std::chrono::seconds kAnswerLimit(120);
constexpr std::chrono::seconds kExitLimit(20);

struct Pipe {
  Pipe() {
    int ends[2];
    check_system(pipe2(ends, O_CLOEXEC), "pipe2");
    read_end = ends[0];
    write_end = ends[1];
  }
  int read_end;
  int write_end;
};

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!changes.contains(text.substr(0, text.find('=')))) merged.push_back(text);
  }
  for (const auto& [name, value] : changes) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Not std::filesystem: libtorch 2.11 exports a broken copy of it that is found first.
std::vector<pid_t> threads_of(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/task";
  DIR* directory = opendir(path.c_str());
  check_system(directory ? 0 : -1, "opendir");
  std::vector<pid_t> threads;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') threads.push_back(std::stoi(entry->d_name));
  }
  closedir(directory);
  return threads;
}

// Between fork and exec: system calls only, everything else was prepared before.
[[noreturn]] void become(char** argv, char** envp, int input, int output, const cpu_set_t* cpus) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  if (cpus != nullptr && sched_setaffinity(0, sizeof(*cpus), cpus) != 0) _exit(126);
  execve(argv[0], argv, envp);
  _exit(127);
}

// Appends what can be read within the limit. False at the end of the output.
bool read_more(int fd, std::string& into, std::chrono::milliseconds limit, const std::string& who) {
  pollfd readable{fd, POLLIN, 0};
  const int ready = poll(&readable, 1, static_cast<int>(limit.count()));
  if (ready < 0 && errno == EINTR) return true;
  check_system(ready, "poll");
  if (ready == 0) throw std::runtime_error("no answer in time from " + who);
  char chunk[4096];
  const ssize_t got = read(fd, chunk, sizeof(chunk));
  check_system(got, "read");
  into.append(chunk, static_cast<size_t>(got));
  return got > 0;
}

}  // namespace

Child::Child(const ChildOptions& options) {
  for (const std::string& word : options.command) name_ += (name_.empty() ? "" : " ") + word;
  std::vector<std::string> arguments = options.command;
  std::map<std::string, std::string> changes = options.environment;
  // A pool thread of libgomp spins on the other core after each parallel region. Anchors and weft
  // both do without it, or the one measured next would pay for it.
  changes.emplace("OMP_NUM_THREADS", "1");
  std::vector<std::string> variables = merged_environment(changes);
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(variables);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (options.cpu) CPU_SET(static_cast<size_t>(*options.cpu), &cpus);

  const Pipe commands, answers;
  pid_ = fork();
  if (pid_ == 0) {
    become(const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), commands.read_end,
           answers.write_end, options.cpu ? &cpus : nullptr);
  }
  close(commands.read_end);
  close(answers.write_end);
  input_ = commands.write_end;
  output_ = answers.read_end;
  check_system(pid_, "fork");
}

Child::~Child() {
  close_input();
  try {
    // Its output ends when it exits.
    while (read_more(output_, unread_, kExitLimit, name_)) {
    }
  } catch (const std::exception&) {
    kill(pid_, SIGKILL);
  }
  close(output_);
  waitpid(pid_, nullptr, 0);
}

std::string Child::read_line() {
  for (;;) {
    const size_t end = unread_.find('\n');
    if (end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!read_more(output_, unread_, kAnswerLimit, name_))
      throw std::runtime_error("ended early: " + name_);
  }
}

double Child::measure(const std::string& what, size_t count) {
  const std::string command = what + " " + std::to_string(count) + "\n";
  const ssize_t written = write(input_, command.data(), command.size());
  if (written != static_cast<ssize_t>(command.size()))
    throw std::runtime_error("takes no commands: " + name_);
  const std::string answer = read_line();
  try {
    return std::stod(answer);
  } catch (const std::exception&) {
    throw std::runtime_error("answered '" + answer + "' instead of a number: " + name_);
  }
}

void Child::close_input() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

void Child::move_to(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<size_t>(cpu), &cpus);
  for (const pid_t id : threads_of(pid_)) {
    if (sched_setaffinity(id, sizeof(cpus), &cpus) != 0 && errno != ESRCH) {
      check_system(-1, "sched_setaffinity");
    }
  }
}

void Child::freeze() { kill(pid_, SIGSTOP); }
void Child::thaw() { kill(pid_, SIGCONT); }

double Child::cpu_seconds() const {
  clockid_t clock;
  if (const int error = clock_getcpuclockid(pid_, &clock); error != 0) {
    throw std::runtime_error(std::string("clock_getcpuclockid: ") + std::strerror(error));
  }
  timespec used;
  check_system(clock_gettime(clock, &used), "clock_gettime");
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

std::vector<std::string> role_command(const std::string& role, std::vector<std::string> arguments) {
  std::vector<std::string> command{"/proc/self/exe", "--role", role};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace bench

// fork, exec and wait for one worker.
// SPDX-License-Identifier: BSD-3-Clause

#include "process/worker_process.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <fmt/format.h>

namespace weft::process {
namespace {

// Everything that the child needs. It is made before the fork: another thread may hold the
// allocator's lock when this one forks, so the child must not allocate.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int standard_input;  // -1: keep that of this process
  int standard_output;
  int standard_error;
  int report;  // the child writes errno here if the program cannot be started; exec closes it
  pid_t launcher;
  const SignalPipe* signals;
};

bool prepare_child(const ChildPlan& plan) noexcept {
  if (::setpgid(0, 0) != 0) return false;
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
  // If the launcher died before the prctl, its death sends no signal any more.
  if (::getppid() != plan.launcher) ::_exit(1);
  if (plan.standard_input >= 0 && ::dup2(plan.standard_input, STDIN_FILENO) < 0) return false;
  if (::dup2(plan.standard_output, STDOUT_FILENO) < 0) return false;
  if (::dup2(plan.standard_error, STDERR_FILENO) < 0) return false;
  return plan.signals->restore_in_child();
}

[[noreturn]] void become_worker(const ChildPlan& plan) noexcept {
  if (prepare_child(plan)) ::execvpe(plan.program, plan.arguments, plan.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(plan.report, &error, sizeof error);
  ::_exit(127);
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Blocks until the child has replaced itself by the program (0) or has said why not (errno).
int wait_for_report(const Descriptor& report) {
  int error = 0;
  ssize_t size;
  do {
    size = ::read(report.get(), &error, sizeof error);
  } while (size < 0 && errno == EINTR);
  if (size < 0) throw_errno("cannot learn whether a worker started");
  return size == 0 ? 0 : error;
}

pid_t wait_for_pid(pid_t pid, int* wait_status, int options) {
  pid_t waited;
  do {
    waited = ::waitpid(pid, wait_status, options);
  } while (waited < 0 && errno == EINTR);
  return waited;
}

}  // namespace

int ExitStatus::code() const {
  return WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_) : WEXITSTATUS(wait_status_);
}

std::string ExitStatus::text() const {
  if (!WIFSIGNALED(wait_status_))
    return fmt::format("exited with status {}", WEXITSTATUS(wait_status_));
  const int signal = WTERMSIG(wait_status_);
  const char* name = ::sigabbrev_np(signal);
  return fmt::format(
      "was killed by {}{}",
      name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal),
      WCOREDUMP(wait_status_) ? " (core dumped)" : "");
}

WorkerProcess::WorkerProcess(const WorkerCommand& command,
                             const std::vector<std::string>& environment, WorkerInput input,
                             const SignalPipe& signals) {
  Pipe output = open_pipe();
  Pipe error = open_pipe();
  Pipe report = open_pipe();
  set_nonblocking(output.read_end);
  set_nonblocking(error.read_end);
  Descriptor nothing;
  if (input == WorkerInput::kNothing) {
    nothing = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing.is_open()) throw_errno("cannot open /dev/null");
  }
  const std::vector<char*> argument_pointers = pointers_to(command.arguments);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  const ChildPlan plan{command.program.c_str(),
                       argument_pointers.data(),
                       environment_pointers.data(),
                       nothing.get(),
                       output.write_end.get(),
                       error.write_end.get(),
                       report.write_end.get(),
                       ::getpid(),
                       &signals};

  signals.block();
  const pid_t pid = ::fork();
  if (pid == 0) become_worker(plan);
  const int fork_error = errno;
  signals.unblock();
  if (pid < 0) throw std::system_error(fork_error, std::generic_category(), "cannot fork");

  report.write_end.close();
  if (const int reason = wait_for_report(report.read_end); reason != 0) {
    wait_for_pid(pid, nullptr, 0);
    throw std::system_error(reason, std::generic_category());
  }
  pid_ = pid;
  standard_output_ = std::move(output.read_end);
  standard_error_ = std::move(error.read_end);
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0 || exit_status_) return;
  signal_group(SIGKILL);
  wait_for_pid(pid_, nullptr, 0);
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_status_(other.exit_status_),
      group_gone_(other.group_gone_),
      standard_output_(std::move(other.standard_output_)),
      standard_error_(std::move(other.standard_error_)) {}

// Ignores failures of kill(): it fails only if the process has gone, or for members of a group that
// have changed their user, and the launcher can do nothing about either.
void WorkerProcess::signal_process(int signal) const {
  if (!exit_status_) ::kill(pid_, signal);
}

void WorkerProcess::signal_group(int signal) const {
  if (group_gone_) return;
  // A worker may have moved itself to another group.
  if (::kill(-pid_, signal) != 0 && errno == ESRCH) signal_process(signal);
}

void WorkerProcess::reap() {
  if (!exit_status_) {
    int wait_status = 0;
    const pid_t waited = wait_for_pid(pid_, &wait_status, WNOHANG);
    if (waited < 0) throw_errno("cannot wait for a worker");
    if (waited > 0) exit_status_ = ExitStatus(wait_status);
  }
  reap_orphans();
}

// Also while the worker runs: processes that it leaves behind become children of this process, and
// those that have exited would stay in the system's table of processes.
void WorkerProcess::reap_orphans() {
  int wait_status = 0;
  while (!group_gone_) {
    const pid_t waited = wait_for_pid(-pid_, &wait_status, WNOHANG);
    if (waited == 0) return;
    if (waited == pid_) exit_status_ = ExitStatus(wait_status);
    if (waited > 0) continue;
    // No child is in the group. A worker that runs has moved itself to another group.
    group_gone_ = exit_status_.has_value();
    return;
  }
}

ChildSubreaper::ChildSubreaper() {
  if (::prctl(PR_GET_CHILD_SUBREAPER, &previous_) != 0 || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw_errno("cannot become the reaper of the workers' children");
  }
}

ChildSubreaper::~ChildSubreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, previous_); }

}  // namespace weft::process

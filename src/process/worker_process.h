// One worker process: how it is started, signalled and waited for.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "process/descriptor.h"
#include "process/signal_pipe.h"

namespace weft::process {

struct WorkerCommand {
  std::string program;                 // a path, or a name to be looked up in PATH
  std::vector<std::string> arguments;  // argv; the first one is the name of the program
};

enum class WorkerInput {
  kNothing,    // reads end of file
  kInherited,  // reads the standard input of this process
};

// How a worker ended, as wait() reports it.
class ExitStatus {
 public:
  explicit ExitStatus(int wait_status) : wait_status_(wait_status) {}

  bool is_success() const { return code() == 0; }
  // 128 + signal for a signal, as shells do.
  int code() const;
  // "exited with status 3", "was killed by SIGSEGV"
  std::string text() const;

 private:
  int wait_status_;
};

// A child with a process group (of the kernel) of its own. A Ctrl-C at the terminal does not reach
// it unless this process passes it on. A signal to the group also reaches processes that the worker
// started. The child is killed when this process dies or this object is destroyed.
class WorkerProcess {
 public:
  // Returns when the program has started. Throws std::system_error if it cannot be started.
  WorkerProcess(const WorkerCommand& command, const std::vector<std::string>& environment,
                WorkerInput input, const SignalPipe& signals);
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;

  pid_t pid() const { return pid_; }
  // Empty while the worker runs.
  const std::optional<ExitStatus>& exit_status() const { return exit_status_; }
  // True if the worker and all processes that it started in its group have exited. It sees the
  // latter only while a ChildSubreaper lives.
  bool is_group_gone() const { return group_gone_; }

  Descriptor take_standard_output() { return std::move(standard_output_); }
  Descriptor take_standard_error() { return std::move(standard_error_); }

  // Both do nothing if the process, or the whole group, has exited.
  void signal_process(int signal) const;
  void signal_group(int signal) const;

  // Notes whether the worker and its group have exited; does not block.
  void reap();

 private:
  void reap_orphans();

  pid_t pid_ = -1;  // also the id of its process group
  std::optional<ExitStatus> exit_status_;
  bool group_gone_ = false;
  Descriptor standard_output_;
  Descriptor standard_error_;
};

// While it lives, orphaned descendants become children of this process. So this process can wait
// for processes that a worker left behind, and can signal the worker's group without the risk that
// its id belongs to another group by now.
class ChildSubreaper {
 public:
  ChildSubreaper();
  ~ChildSubreaper();
  ChildSubreaper(const ChildSubreaper&) = delete;
  ChildSubreaper& operator=(const ChildSubreaper&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace weft::process

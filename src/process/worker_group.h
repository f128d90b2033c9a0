// The workers of one program on this machine, from the start of the first to the end of the last.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "process/line_output.h"
#include "process/signal_pipe.h"
#include "process/worker_environment.h"
#include "process/worker_process.h"

namespace weft::process {

enum class LinePrefix {
  kEveryLine,
  kAllButOutputOfRank0,  // so that a program's own output can be piped
  kNone,
};

struct WorkerGroupOptions {
  WorkerCommand command;
  int workers = 1;
  // How long workers that were asked to end have before they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
  LinePrefix prefix = LinePrefix::kEveryLine;
};

// Starts the workers, passes their lines on to this process's own output, passes the signals that
// this process gets on to them, and ends all of them when one fails. It has one poll loop and no
// threads. run() may be called once.
class WorkerGroup {
 public:
  explicit WorkerGroup(WorkerGroupOptions options);

  // Blocks until all workers have exited. Returns the exit code: 0 if every worker succeeded, else
  // that of the first that did not; 127 if there is no such program and 126 if it cannot be
  // started.
  int run();

 private:
  // The phase only ever moves down this list.
  enum class Phase {
    kRunning,
    kAsked,   // a signal that asks for the end was passed on; the workers decide what they do
    kEnding,  // one has failed; the others have until kill_at_
    kKilled,
  };

  struct Stream {
    Descriptor pipe;
    size_t rank;
    int destination;  // this process's descriptor that the lines go to
    std::string prefix;
    LineSplitter lines;
  };

  void start_workers();
  void add_streams(WorkerProcess& worker, size_t rank);
  bool is_finished() const;
  void wait_for_events();
  int milliseconds_until_kill() const;

  void on_signals();
  void on_signal(SignalPipe::Event event);
  void on_stop_signal(int signal);
  void on_terminal_stop();
  void on_child_exited(pid_t first);
  void on_exit_of(size_t rank);
  void on_failure(int exit_code, const std::string& what);
  void on_kill_time();
  void on_writable();

  size_t read_part(Stream& stream);
  void drain(Stream& stream);
  void finish_output();
  void kill_all();
  void signal_groups(int signal);
  size_t count_running() const;
  void announce(const std::string& message);

  WorkerGroupOptions options_;
  SignalPipe signals_;
  ChildSubreaper subreaper_;
  WorkerEnvironment environment_;
  std::vector<WorkerProcess> workers_;
  std::vector<Stream> streams_;
  LineOutput output_;
  Phase phase_ = Phase::kRunning;
  std::chrono::steady_clock::time_point kill_at_;
  std::optional<int> first_failure_;  // exit code
};

}  // namespace weft::process

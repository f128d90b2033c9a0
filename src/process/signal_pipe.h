// Signals as events that a poll loop can read.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <span>
#include <vector>

#include "process/descriptor.h"

namespace weft::process {

// While it lives, the given signals no longer act on this process but are read from descriptor().
// Only one SignalPipe may exist at a time.
//
// It uses signal handlers that write into a pipe. A signalfd would need the signals blocked in
// every thread, and a library may have started threads before main() that block none.
class SignalPipe {
 public:
  struct Event {
    int signal;
    pid_t sender;  // for SIGCHLD: the child
  };

  // A signal of `unless_ignored` stays ignored if this process was started so (by nohup).
  SignalPipe(std::span<const int> always, std::span<const int> unless_ignored);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int descriptor() const { return pipe_.read_end.get(); }
  std::optional<Event> take_event();

  // Blocks every signal, in this thread, around a fork: the child shares the pipe and would write
  // its own signals into it. The child ends the blocking with restore_in_child(), the parent with
  // unblock().
  void block() const;
  void unblock() const;
  // Gives a forked child the mask and the ignored signals this process was started with.
  // Async-signal-safe.
  bool restore_in_child() const noexcept;

 private:
  struct Previous {
    int signal;
    struct sigaction action;
  };

  void install(int signal);
  void restore() noexcept;

  Pipe pipe_;
  std::vector<Previous> previous_;
  sigset_t previous_mask_;
  sigset_t mask_;
};

}  // namespace weft::process

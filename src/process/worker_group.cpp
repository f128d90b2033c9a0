// The poll loop that supervises workers.
// SPDX-License-Identifier: BSD-3-Clause

#include "process/worker_group.h"

#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include <fmt/format.h>

namespace weft::process {
namespace {

// SIGPIPE is handled only so that it does not end this process; write() reports the same.
constexpr int kAlwaysHandled[] = {SIGCHLD, SIGPIPE};
constexpr int kHandledUnlessIgnored[] = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                         SIGUSR1, SIGUSR2, SIGTSTP};

WorkerGroupOptions checked(WorkerGroupOptions options) {
  if (options.workers < 1) {
    throw std::invalid_argument(
        fmt::format("a group needs at least one worker, not {}", options.workers));
  }
  return options;
}

// A process can be started with its standard descriptors closed. The pipes to the workers would
// then get their numbers, and lines of the workers would be written into these pipes.
void open_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    if (::open("/dev/null", O_RDWR) != descriptor) throw_errno("cannot open /dev/null");
  }
}

std::string prefix_of(size_t rank, int workers) {
  return fmt::format("[{:>{}}] ", rank, fmt::formatted_size("{}", workers - 1));
}

enum class Waited {
  kReady,        // for a descriptor at least
  kTimeLimit,    // nothing came within the time
  kInterrupted,  // by a signal: it is in the signal pipe, and the time is not over
};

Waited wait_for(std::vector<pollfd>& polled, int timeout_ms) {
  const int ready = ::poll(polled.data(), polled.size(), timeout_ms);
  if (ready >= 0) return ready > 0 ? Waited::kReady : Waited::kTimeLimit;
  if (errno != EINTR) throw_errno("cannot wait for the workers");
  for (pollfd& each : polled) each.revents = 0;
  return Waited::kInterrupted;
}

}  // namespace

WorkerGroup::WorkerGroup(WorkerGroupOptions options)
    // The standard descriptors come first: every other member opens descriptors.
    : options_((open_standard_descriptors(), checked(std::move(options)))),
      signals_(kAlwaysHandled, kHandledUnlessIgnored),
      environment_(options_.workers) {}

int WorkerGroup::run() {
  start_workers();
  while (!is_finished()) {
    wait_for_events();
    on_signals();
    if (phase_ == Phase::kEnding && std::chrono::steady_clock::now() >= kill_at_) on_kill_time();
    std::erase_if(streams_, [](const Stream& stream) { return !stream.pipe.is_open(); });
  }
  finish_output();
  return first_failure_.value_or(0);
}

void WorkerGroup::start_workers() {
  const size_t count = static_cast<size_t>(options_.workers);
  workers_.reserve(count);
  for (size_t rank = 0; rank < count; ++rank) {
    // Only rank 0 reads the input; otherwise it would be scattered over the workers. Nobody reads
    // from a terminal: the kernel stops a process outside the foreground group that tries to.
    const WorkerInput input =
        rank == 0 && ::isatty(STDIN_FILENO) == 0 ? WorkerInput::kInherited : WorkerInput::kNothing;
    try {
      workers_.emplace_back(options_.command, environment_.of_rank(static_cast<int>(rank)), input,
                            signals_);
    } catch (const std::system_error& error) {
      const bool missing = error.code() == std::errc::no_such_file_or_directory;
      on_failure(missing ? 127 : 126,
                 fmt::format("cannot start {}: {}", options_.command.program, error.what()));
      return;
    }
    add_streams(workers_.back(), rank);
  }
}

void WorkerGroup::add_streams(WorkerProcess& worker, size_t rank) {
  const std::string prefix =
      options_.prefix == LinePrefix::kNone ? "" : prefix_of(rank, options_.workers);
  const bool bare_output = options_.prefix == LinePrefix::kAllButOutputOfRank0 && rank == 0;
  streams_.push_back(
      {worker.take_standard_output(), rank, STDOUT_FILENO, bare_output ? "" : prefix, {}});
  streams_.push_back({worker.take_standard_error(), rank, STDERR_FILENO, prefix, {}});
}

bool WorkerGroup::is_finished() const {
  if (count_running() > 0) return false;
  // Processes that successful workers left in the background may stay. If a worker failed, all
  // processes that the workers started must be gone.
  return phase_ < Phase::kEnding || std::ranges::all_of(workers_, [](const WorkerProcess& worker) {
           return worker.is_group_gone();
         });
}

void WorkerGroup::wait_for_events() {
  std::vector<pollfd> polled;
  polled.push_back({signals_.descriptor(), POLLIN, 0});
  polled.push_back({output_.empty() ? -1 : output_.next_descriptor(), POLLOUT, 0});
  // While the output is full nothing is read: then the workers wait, and memory does not grow.
  if (!output_.is_full()) {
    for (const Stream& stream : streams_) polled.push_back({stream.pipe.get(), POLLIN, 0});
  }
  wait_for(polled, milliseconds_until_kill());

  for (size_t i = 2; i < polled.size(); ++i) {
    if (polled[i].revents != 0) read_part(streams_[i - 2]);
  }
  if (polled[1].revents != 0) on_writable();
}

int WorkerGroup::milliseconds_until_kill() const {
  if (phase_ != Phase::kEnding) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(kill_at_ - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

void WorkerGroup::on_signals() {
  while (const auto event = signals_.take_event()) on_signal(*event);
}

void WorkerGroup::on_signal(SignalPipe::Event event) {
  switch (event.signal) {
    case SIGCHLD:
      return on_child_exited(event.sender);
    case SIGPIPE:
      return;
    case SIGINT:
    case SIGTERM:
    case SIGQUIT:
      return on_stop_signal(event.signal);
    case SIGHUP:
      return signal_groups(event.signal);
    case SIGTSTP:
      return on_terminal_stop();
    default:
      // Only the workers get the signal: processes that they started mostly do not handle these
      // signals and would end.
      for (const WorkerProcess& worker : workers_) worker.signal_process(event.signal);
  }
}

void WorkerGroup::on_stop_signal(int signal) {
  if (signal == SIGINT && phase_ != Phase::kRunning) {
    if (count_running() > 0) announce("interrupted again; killing the workers");
    return kill_all();
  }
  signal_groups(signal);
  phase_ = std::max(phase_, Phase::kAsked);
}

// For Ctrl-Z, which reached only this process: the workers are not in the terminal's foreground
// group.
void WorkerGroup::on_terminal_stop() {
  signal_groups(SIGSTOP);
  ::raise(SIGSTOP);
  signal_groups(SIGCONT);
}

// The SIGCHLDs of several children may arrive as one. The child that it names exited first, and the
// others mostly exited because of it.
void WorkerGroup::on_child_exited(pid_t first) {
  const auto reap = [this](size_t rank) {
    WorkerProcess& worker = workers_[rank];
    const bool was_running = !worker.exit_status();
    worker.reap();
    if (was_running && worker.exit_status()) on_exit_of(rank);
  };
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank].pid() == first) reap(rank);
  }
  for (size_t rank = 0; rank < workers_.size(); ++rank) reap(rank);
}

void WorkerGroup::on_exit_of(size_t rank) {
  // Print the last lines of the worker before the message about its exit.
  for (Stream& stream : streams_) {
    if (stream.rank == rank) drain(stream);
  }
  const WorkerProcess& worker = workers_[rank];
  if (worker.exit_status()->is_success()) return;
  on_failure(worker.exit_status()->code(), fmt::format("worker {} (pid {}) {}", rank, worker.pid(),
                                                       worker.exit_status()->text()));
}

void WorkerGroup::on_failure(int exit_code, const std::string& what) {
  if (first_failure_) return;
  first_failure_ = exit_code;
  announce(count_running() > 0 ? what + "; stopping the others" : what);
  // Workers that were asked already are cleaning up; a second signal would cut that short.
  if (phase_ == Phase::kRunning) signal_groups(SIGTERM);
  phase_ = std::max(phase_, Phase::kEnding);
  kill_at_ = std::chrono::steady_clock::now() + options_.grace;
}

void WorkerGroup::on_kill_time() {
  std::string running;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    if (!workers_[rank].exit_status())
      running += fmt::format("{}{}", running.empty() ? "" : ", ", rank);
  }
  if (!running.empty()) {
    announce(fmt::format("killing what did not end within {:g} s: worker {}",
                         std::chrono::duration<double>(options_.grace).count(), running));
  }
  kill_all();
}

void WorkerGroup::on_writable() {
  const int descriptor = output_.next_descriptor();
  const LineOutput::WriteResult result = output_.write_part();
  if (result == LineOutput::WriteResult::kWritten) return;
  const int error = errno;
  // Close this end too: a worker that writes there gets SIGPIPE, as if it were connected to that
  // reader directly.
  for (Stream& stream : streams_) {
    if (stream.destination == descriptor) stream.pipe.close();
  }
  if (result == LineOutput::WriteResult::kFailed) {
    on_failure(1, fmt::format("cannot write the workers' output: {}", ::strerror(error)));
  }
}

size_t WorkerGroup::read_part(Stream& stream) {
  if (!stream.pipe.is_open()) return 0;
  std::array<char, size_t{64} << 10> buffer;
  ssize_t size;
  do {
    size = ::read(stream.pipe.get(), buffer.data(), buffer.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0) {
    if (errno == EAGAIN) return 0;
    throw_errno("cannot read a worker's output");
  }
  const auto push = [&](std::string_view line) {
    output_.push(stream.destination, stream.prefix, line);
  };
  if (size == 0) {
    stream.lines.finish(push);
    stream.pipe.close();
    return 0;
  }
  stream.lines.append({buffer.data(), static_cast<size_t>(size)}, push);
  return static_cast<size_t>(size);
}

// Reads the bytes that are there now. It does not wait for the end of the stream: a process that
// the worker started may hold the pipe open for long.
void WorkerGroup::drain(Stream& stream) {
  if (!stream.pipe.is_open()) return;
  int available = 0;
  if (::ioctl(stream.pipe.get(), FIONREAD, &available) != 0)
    throw_errno("cannot read a worker's output");
  size_t taken = 0;
  size_t size;
  do {
    size = read_part(stream);
    taken += size;
  } while (size > 0 && taken <= static_cast<size_t>(available));
}

void WorkerGroup::finish_output() {
  for (Stream& stream : streams_) {
    drain(stream);
    stream.lines.finish(
        [&](std::string_view line) { output_.push(stream.destination, stream.prefix, line); });
  }
  while (!output_.empty()) {
    std::vector<pollfd> polled;
    polled.push_back({signals_.descriptor(), POLLIN, 0});
    polled.push_back({output_.next_descriptor(), POLLOUT, 0});
    // A slow reader is waited for, but only for the grace time once the end was asked for.
    const int limit = phase_ == Phase::kRunning ? -1 : static_cast<int>(options_.grace.count());
    if (wait_for(polled, limit) == Waited::kTimeLimit) return;
    while (const auto event = signals_.take_event()) {
      // No worker is left, so the signal asks this process to end, even if its output is not read.
      if (event->signal == SIGINT || event->signal == SIGTERM || event->signal == SIGQUIT ||
          event->signal == SIGHUP)
        return;
      if (event->signal == SIGTSTP) on_terminal_stop();
    }
    if (polled[1].revents != 0) on_writable();
  }
}

void WorkerGroup::kill_all() {
  phase_ = Phase::kKilled;
  signal_groups(SIGKILL);
}

void WorkerGroup::signal_groups(int signal) {
  for (const WorkerProcess& worker : workers_) worker.signal_group(signal);
}

size_t WorkerGroup::count_running() const {
  return static_cast<size_t>(std::ranges::count_if(
      workers_, [](const WorkerProcess& worker) { return !worker.exit_status(); }));
}

void WorkerGroup::announce(const std::string& message) {
  output_.push(STDERR_FILENO, "weft: ", message);
}

}  // namespace weft::process

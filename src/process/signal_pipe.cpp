// The signal handler and the pipe behind it.
// SPDX-License-Identifier: BSD-3-Clause

#include "process/signal_pipe.h"

#include <atomic>
#include <stdexcept>

namespace weft::process {
namespace {

// Global, because a signal handler gets no argument from the program.
std::atomic<int> handler_descriptor{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const SignalPipe::Event event{signal, info->si_pid};
  // If the pipe is full, the event is lost. It holds thousands of events, so the same signal is in
  // it already.
  [[maybe_unused]] const ssize_t written = ::write(handler_descriptor.load(), &event, sizeof event);
  errno = saved_errno;
}

bool is_ignored(int signal) {
  struct sigaction action;
  if (::sigaction(signal, nullptr, &action) != 0) throw_errno("cannot read a signal's action");
  return action.sa_handler == SIG_IGN;
}

void change_mask(const sigset_t* mask, sigset_t* previous) {
  const int error = ::pthread_sigmask(SIG_SETMASK, mask, previous);
  if (error != 0) throw std::system_error(error, std::generic_category(), "cannot block signals");
}

}  // namespace

SignalPipe::SignalPipe(std::span<const int> always, std::span<const int> unless_ignored)
    : pipe_(open_pipe()) {
  set_nonblocking(pipe_.read_end);
  set_nonblocking(pipe_.write_end);
  change_mask(nullptr, &previous_mask_);
  mask_ = previous_mask_;
  int unused = -1;
  if (!handler_descriptor.compare_exchange_strong(unused, pipe_.write_end.get())) {
    throw std::logic_error("this process already supervises a group of workers");
  }
  try {
    for (const int signal : always) install(signal);
    for (const int signal : unless_ignored) {
      if (!is_ignored(signal)) install(signal);
    }
    unblock();
  } catch (...) {
    restore();
    throw;
  }
}

SignalPipe::~SignalPipe() { restore(); }

std::optional<SignalPipe::Event> SignalPipe::take_event() {
  Event event;
  ssize_t size;
  do {
    size = ::read(descriptor(), &event, sizeof event);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) return std::nullopt;
  if (size < 0) throw_errno("cannot read signals");
  return event;
}

void SignalPipe::block() const {
  sigset_t all;
  ::sigfillset(&all);
  change_mask(&all, nullptr);
}

void SignalPipe::unblock() const { change_mask(&mask_, nullptr); }

bool SignalPipe::restore_in_child() const noexcept {
  for (const Previous& previous : previous_) {
    struct sigaction action = previous.action;
    // A handler of the program must not run between fork and exec, and exec would remove it anyway.
    if (action.sa_handler != SIG_IGN) action.sa_handler = SIG_DFL;
    action.sa_flags = 0;
    if (::sigaction(previous.signal, &action, nullptr) != 0) return false;
  }
  return ::sigprocmask(SIG_SETMASK, &previous_mask_, nullptr) == 0;
}

void SignalPipe::install(int signal) {
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NOCLDSTOP;
  ::sigfillset(&action.sa_mask);
  Previous previous{signal, {}};
  if (::sigaction(signal, &action, &previous.action) != 0) throw_errno("cannot handle a signal");
  previous_.push_back(previous);
  ::sigdelset(&mask_, signal);
}

void SignalPipe::restore() noexcept {
  // These cannot fail: the same calls with the same signals succeeded before.
  for (const Previous& previous : previous_)
    ::sigaction(previous.signal, &previous.action, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  handler_descriptor.store(-1);
}

}  // namespace weft::process

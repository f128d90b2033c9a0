// SPDX-License-Identifier: BSD-3-Clause
#include "arena/borrower.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace weft::arena {

Borrower::Borrower(pid_t process) : process_(process) {
  const long handle = syscall(SYS_pidfd_open, process, 0);
  if (handle >= 0) handle_ = transport::PrivateDescriptor(static_cast<int>(handle));
  dead_ = handle < 0 && errno == ESRCH;
}

bool Borrower::is_dead() {
  if (dead_) return true;
  if (handle_) {
    pollfd polled{handle_.get(), POLLIN, 0};
    dead_ = poll(&polled, 1, 0) > 0;
  } else {
    dead_ = kill(process_, 0) != 0 && errno == ESRCH;
  }
  return dead_;
}

}  // namespace weft::arena

// An open file descriptor that only this process uses: forked children close their copy.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/fork.h"

namespace weft::transport {

class PrivateDescriptor {
 public:
  PrivateDescriptor() = default;
  explicit PrivateDescriptor(int fd) : fd_(fd) { base::close_in_forked_child(fd); }
  PrivateDescriptor(PrivateDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), fork_depth_(other.fork_depth_) {}
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(fork_depth_, other.fork_depth_);
    return *this;
  }
  ~PrivateDescriptor() {
    if (fd_ < 0 || base::fork_depth() != fork_depth_) return;
    base::keep_in_forked_child(fd_);
    ::close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
  uint32_t fork_depth_ = base::fork_depth();
};

}  // namespace weft::transport

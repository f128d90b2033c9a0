// An open file descriptor, closed by its owner, and in processes forked from this one.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/fork.h"

namespace weft::transport {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) { base::close_in_forked_child(fd); }
  Descriptor(Descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), fork_depth_(other.fork_depth_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(fork_depth_, other.fork_depth_);
    return *this;
  }
  ~Descriptor() {
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

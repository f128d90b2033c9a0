// Disks that a test has a hand in.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include "checkpoint/disk.h"

namespace weft::checkpoint {

class CountingDisk final : public Disk {
 public:
  ssize_t read(int file, std::span<std::byte> to) override {
    const ssize_t got = Disk::read(file, to);
    if (got > 0) bytes_read += static_cast<uint64_t>(got);
    return got;
  }
  std::atomic<uint64_t> bytes_read{0};
};

/// Does a byte at a time, and not every time.
class ReluctantDisk final : public Disk {
 public:
  ssize_t read(int file, std::span<std::byte> to) override {
    return refuses() ? -1 : Disk::read(file, to.first(1));
  }
  ssize_t write(int file, std::span<const std::byte> bytes) override {
    return refuses() ? -1 : Disk::write(file, bytes.first(1));
  }

 private:
  bool refuses() {
    errno = EINTR;
    return ++calls_ % 3 == 0;
  }
  int calls_ = 0;
};

/// Waits before it writes an entry, until it is released. The head of a file is written at once.
class HeldDisk final : public Disk {
 public:
  ~HeldDisk() override { release(); }

  ssize_t write(int file, std::span<const std::byte> bytes) override {
    constexpr size_t kHeadBytes = 16;
    if (bytes.size() > kHeadBytes) {
      std::unique_lock lock(mutex_);
      writing_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
    }
    return Disk::write(file, bytes);
  }
  void wait_until_it_writes() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return writing_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool writing_ = false;
  bool released_ = false;
};

}  // namespace weft::checkpoint

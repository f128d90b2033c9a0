// The system calls on the bytes of a checkpoint's files.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "rpc/agent_core.h"
#include "rpc/agent_extension.h"

namespace weft::checkpoint {

/// These do what the system calls of the same names do, and return -1 and set errno if they fail. A
/// test derives from this class to count calls, delay them or make them fail.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual ssize_t read(int file, std::span<std::byte> to);
  virtual ssize_t write(int file, std::span<const std::byte> bytes);
  virtual int sync(int file);
};

/// The disk to which an agent writes its parts of checkpoints.
class Storage final : public rpc::AgentExtension {
 public:
  static Storage& of(rpc::AgentCore& agent);

  std::shared_ptr<Disk> disk() const;
  /// Files that are opened from now on use this disk.
  void use(std::shared_ptr<Disk> disk);

 private:
  mutable base::Mutex mutex_;
  std::shared_ptr<Disk> disk_ WEFT_GUARDED_BY(mutex_) = std::make_shared<Disk>();
};

}  // namespace weft::checkpoint

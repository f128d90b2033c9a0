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

/// As the calls of the same names: -1 and errno when they fail. A test derives from it, in order to
/// count calls, hold them up or have them fail.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual ssize_t read(int file, std::span<std::byte> to);
  virtual ssize_t write(int file, std::span<const std::byte> bytes);
  virtual int sync(int file);
};

/// The disk that an agent's parts of checkpoints are on.
class Storage final : public rpc::AgentExtension {
 public:
  static Storage& of(rpc::AgentCore& agent);

  std::shared_ptr<Disk> disk() const;
  /// For files that are opened from now on.
  void use(std::shared_ptr<Disk> disk);

 private:
  mutable base::Mutex mutex_;
  std::shared_ptr<Disk> disk_ WEFT_GUARDED_BY(mutex_) = std::make_shared<Disk>();
};

}  // namespace weft::checkpoint

// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/disk.h"

#include <unistd.h>

#include <utility>

namespace weft::checkpoint {

ssize_t Disk::read(int file, std::span<std::byte> to) { return ::read(file, to.data(), to.size()); }
ssize_t Disk::write(int file, std::span<const std::byte> bytes) {
  return ::write(file, bytes.data(), bytes.size());
}
int Disk::sync(int file) { return ::fsync(file); }

namespace {
std::shared_ptr<rpc::AgentExtension> make_storage(rpc::AgentCore&) {
  return std::make_shared<Storage>();
}
const size_t storage_index = rpc::register_agent_extension(&make_storage);
}  // namespace

Storage& Storage::of(rpc::AgentCore& agent) {
  return static_cast<Storage&>(agent.extension(storage_index));
}

std::shared_ptr<Disk> Storage::disk() const {
  const base::MutexLock lock(mutex_);
  return disk_;
}

void Storage::use(std::shared_ptr<Disk> disk) {
  const base::MutexLock lock(mutex_);
  disk_ = std::move(disk);
}

}  // namespace weft::checkpoint

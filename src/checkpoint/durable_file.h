// A file that appears under its name complete, or not at all.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "checkpoint/checksum.h"
#include "checkpoint/disk.h"
#include "transport/private_descriptor.h"

namespace weft::checkpoint {

/// A file is read or written in blocks of this size. A block is still in the processor's cache when
/// its checksum is computed.
constexpr size_t kBlockBytes = 256 * 1024;

[[noreturn]] void throw_storage(const std::string& what, const std::string& path);

// Not std::filesystem: libtorch 2 exports that of another compiler's library, which crashes.

std::string parent_of(const std::string& path);
/// Creates the directory and the missing directories above it, and syncs the parent of each, so
/// that they survive a power failure.
void make_directory(const std::string& path);
/// After this call, files that were created, renamed or removed in the directory stay so after a
/// power failure.
void sync_directory(const std::string& path);

/// Writes a file under another name, which commit() changes to the right one. Without commit() no
/// file is left. Nobody else may write a file of that name at the same time.
class DurableFile {
 public:
  explicit DurableFile(std::string path, std::shared_ptr<Disk> disk = std::make_shared<Disk>());
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void commit();

  uint64_t bytes() const { return bytes_; }
  uint64_t checksum() const { return checksum_.value(); }

 private:
  const std::string path_;
  const std::string unfinished_;
  const std::shared_ptr<Disk> disk_;
  transport::PrivateDescriptor file_;
  bool committed_ = false;
  uint64_t bytes_ = 0;
  Checksum checksum_;
};

}  // namespace weft::checkpoint

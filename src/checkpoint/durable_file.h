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

/// The bytes of a file are read or written, and summed up, in pieces of this size: what the one has
/// just touched is in the processor's cache for the other.
constexpr size_t kPieceBytes = 256 * 1024;

[[noreturn]] void throw_storage(const std::string& what, const std::string& path);

// Not std::filesystem: libtorch 2 exports that of another compiler's library, which crashes.

std::string parent_of(const std::string& path);
/// Makes the directory and those above it, so that they survive a crash.
void make_directory(const std::string& path);
/// Makes changes of the directory's entries (created, renamed, removed) survive a crash.
void sync_directory(const std::string& path);

/// A file that is written beside its name and renamed by commit(). Without commit(), nothing is
/// left. No other thread or process may write a file of that name.
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

// A file that appears under its name complete, or not at all.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <boost/crc.hpp>

#include "transport/descriptor.h"

namespace weft::checkpoint {

/// CRC-64 of everything it was given (ECMA-182, reflected).
class Checksum {
 public:
  void add(const void* bytes, size_t size) { crc_.process_bytes(bytes, size); }
  uint64_t value() const { return crc_.checksum(); }

 private:
  boost::crc_optimal<64, 0x42F0E1EBA9EA3693, ~uint64_t{0}, ~uint64_t{0}, true, true> crc_;
};

[[noreturn]] void throw_storage(const std::string& what, const std::string& path);

// Not std::filesystem: libtorch 2 exports that of another compiler's library, which crashes.

std::string parent_of(const std::string& path);
/// Also those above it; what it makes stays.
void make_directory(const std::string& path);
/// What was created, renamed or removed in it stays so.
void sync_directory(const std::string& path);

/// Written beside its name and renamed by commit(). Without that, nothing is left. Nobody else may
/// write a file of that name.
class DurableFile {
 public:
  explicit DurableFile(std::string path);
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
  transport::Descriptor file_;
  bool committed_ = false;
  uint64_t bytes_ = 0;
  Checksum checksum_;
};

}  // namespace weft::checkpoint

// Memory that processes share by handing each other its descriptor. It has no name, and is gone
// when the last process that maps it is.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <span>

#include "transport/private_descriptor.h"

namespace weft::transport {

/// Whether a forked child has the mapping too.
enum class InForkedChild { kUnmapped, kMapped };

/// Mapped for reading and writing.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// New memory, all zeros, whose size nobody can change. Throws kUnavailable.
  static SharedMemory create(size_t bytes, InForkedChild child = InForkedChild::kUnmapped);
  /// The memory behind a descriptor that another process made. Throws kBadMessage unless it has
  /// exactly `bytes` bytes and nobody can take them away: then no access to it can fail.
  static SharedMemory adopt(const PrivateDescriptor& descriptor, size_t bytes,
                            InForkedChild child = InForkedChild::kUnmapped);

  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SharedMemory();

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  /// Of memory that was created here, for other processes; none if it was adopted.
  const PrivateDescriptor& descriptor() const { return descriptor_; }
  void close_descriptor() { descriptor_ = {}; }

 private:
  void map(int descriptor, size_t bytes, InForkedChild child);
  void swap(SharedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(fork_depth_, other.fork_depth_);
    std::swap(descriptor_, other.descriptor_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint32_t fork_depth_ = base::fork_depth();
  PrivateDescriptor descriptor_;
};

}  // namespace weft::transport

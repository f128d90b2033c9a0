// SPDX-License-Identifier: BSD-3-Clause
#include "transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "weft/error.h"

namespace weft::transport {

namespace {

// The size can no longer be changed, and neither can this list.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const char* doing, size_t bytes) {
  throw Error(ErrorCode::kUnavailable, fmt::format("cannot {} {} bytes of shared memory: {}", doing,
                                                   bytes, strerror(errno)));
}

}  // namespace

SharedMemory SharedMemory::create(size_t bytes, InForkedChild child) {
  SharedMemory memory;
  memory.descriptor_ = PrivateDescriptor(memfd_create("weft", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = memory.descriptor_.get();
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    fail("create", bytes);
  }
  memory.map(fd, bytes, child);
  return memory;
}

SharedMemory SharedMemory::adopt(const PrivateDescriptor& descriptor, size_t bytes,
                                 InForkedChild child) {
  const int fd = descriptor.get();
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw Error(ErrorCode::kBadMessage, "memory of a peer that it could take away");
  }
  if (seals & ~kSeals) {
    throw Error(
        ErrorCode::kBadMessage,
        fmt::format("memory of a peer with the seals {:#x}; expected {:#x}", seals, kSeals));
  }
  struct stat status {};
  if (fstat(fd, &status) != 0 || static_cast<size_t>(status.st_size) != bytes) {
    throw Error(ErrorCode::kBadMessage, fmt::format("memory of a peer with {} bytes in place of {}",
                                                    status.st_size, bytes));
  }
  // The system may have no huge page left when one is touched.
  if (status.st_blksize != sysconf(_SC_PAGESIZE)) {
    throw Error(ErrorCode::kBadMessage,
                fmt::format("memory of a peer in pages of {} bytes", status.st_blksize));
  }
  SharedMemory memory;
  memory.map(fd, bytes, child);
  return memory;
}

void SharedMemory::map(int descriptor, size_t bytes, InForkedChild child) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) fail("map", bytes);
  if (child == InForkedChild::kUnmapped) madvise(mapped, bytes, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(mapped);
  size_ = bytes;
}

SharedMemory::~SharedMemory() {
  // In a forked child something else may lie there by now.
  if (data_ && base::fork_depth() == fork_depth_) munmap(data_, size_);
}

}  // namespace weft::transport

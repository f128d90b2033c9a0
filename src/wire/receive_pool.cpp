// SPDX-License-Identifier: BSD-3-Clause
#include "wire/receive_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include "weft/error.h"

namespace weft::wire {

namespace {
constexpr size_t kSmallest = 256 * 1024;  // below this size malloc reuses its own pages
constexpr size_t kSmallTensor = 1024;
constexpr size_t kPage = 4096;
}  // namespace

struct ReceivePool::Block {
  void* memory = MAP_FAILED;
  size_t bytes = 0;
  std::shared_ptr<ReceivePool> pool;  // set while a tensor has it
  ~Block() {
    if (memory != MAP_FAILED) munmap(memory, bytes);
  }
};

ReceivePool::ReceivePool(size_t keep_bytes) : keep_bytes_(keep_bytes) {}
ReceivePool::~ReceivePool() = default;

c10::DataPtr ReceivePool::allocate(size_t bytes) {
  // Small tensors need no more alignment than any object has, and a plain malloc is five times as
  // fast as libtorch's aligned one.
  if (bytes <= kSmallTensor) {
    void* memory = std::malloc(bytes ? bytes : 1);
    if (!memory) throw Error(ErrorCode::kLimitExceeded, "no memory for a tensor");
    return {memory, memory, &std::free, c10::Device(c10::DeviceType::CPU)};
  }
  if (bytes < kSmallest) return c10::GetCPUAllocator()->allocate(bytes);
  std::unique_ptr<Block> block = find(bytes);
  if (!block) {
    block = std::make_unique<Block>();
    block->bytes = (bytes + kPage - 1) / kPage * kPage;
    block->memory = mmap(nullptr, block->bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block->memory == MAP_FAILED) {
      throw Error(ErrorCode::kLimitExceeded,
                  fmt::format("no memory for a tensor of {} bytes: {}", bytes, strerror(errno)));
    }
  }
  block->pool = shared_from_this();
  void* memory = block->memory;
  return {memory, block.release(), &give_back, c10::Device(c10::DeviceType::CPU)};
}

// Takes a block that is at most a quarter too large. A larger one would waste memory.
std::unique_ptr<ReceivePool::Block> ReceivePool::find(size_t bytes) {
  const base::MutexLock lock(mutex_);
  auto found = free_.lower_bound(bytes);
  if (found == free_.end() || found->first > bytes + bytes / 4 + kPage) return nullptr;
  std::unique_ptr<Block> block = std::move(found->second);
  free_.erase(found);
  kept_ -= block->bytes;
  return block;
}

void ReceivePool::give_back(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  std::shared_ptr<ReceivePool> pool = std::move(block->pool);
  pool->keep_or_unmap(std::move(block));
}

void ReceivePool::keep_or_unmap(std::unique_ptr<Block> block) {
  const base::MutexLock lock(mutex_);
  if (kept_ + block->bytes > keep_bytes_) return;
  const size_t bytes = block->bytes;
  try {
    free_.emplace(bytes, std::move(block));
  } catch (const std::bad_alloc&) {
    return;  // not kept: this is called where a tensor ends, and that cannot fail
  }
  kept_ += bytes;
}

void ReceivePool::clear() {
  std::multimap<size_t, std::unique_ptr<Block>> unmapped;  // destroyed after the lock is released
  const base::MutexLock lock(mutex_);
  unmapped.swap(free_);
  kept_ = 0;
}

size_t ReceivePool::kept_bytes() const {
  const base::MutexLock lock(mutex_);
  return kept_;
}

}  // namespace weft::wire

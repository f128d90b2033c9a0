// Memory that tensors are received into.
//
// Fresh pages cost more than moving the bytes that go into them, so large blocks come back here
// when their tensor is freed and serve the next one. Blocks are mapped without being touched:
// memory is used as bytes arrive, never because a size was claimed.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include <c10/core/Allocator.h>

#include "base/mutex.h"

namespace weft::wire {

class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  explicit ReceivePool(size_t keep_bytes);
  ~ReceivePool();

  /// Uninitialised memory; throws kLimitExceeded if the system has none.
  c10::DataPtr allocate(size_t bytes);

  size_t kept_bytes() const;
  /// Gives all memory that is kept back to the system.
  void clear();

 private:
  struct Block;
  static void give_back(void* context);
  void keep_or_unmap(std::unique_ptr<Block> block);
  std::unique_ptr<Block> find(size_t bytes);

  const size_t keep_bytes_;
  mutable base::Mutex mutex_;
  std::multimap<size_t, std::unique_ptr<Block>> free_ WEFT_GUARDED_BY(mutex_);
  size_t kept_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::wire

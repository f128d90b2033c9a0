// use_shared_allocator() of weft/same_host.h.
// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <cstring>

#include <c10/core/CPUAllocator.h>

#include "arena/arena.h"
#include "weft/error.h"
#include "weft/same_host.h"
#include "wire/carrier.h"

namespace weft {

namespace {

c10::Allocator* usual = nullptr;  // set before the first use of the other

void free_anywhere(void* data) {
  if (arena::Arena::owner_of(data)) {
    arena::Arena::free(data);
  } else {
    usual->raw_deallocate(data);
  }
}

#ifdef __clang__
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#endif

// libtorch's own for small tensors, and when the arena is full.
class SharedAllocator final : public c10::Allocator {
 public:
  // Of these two one is libtorch's, depending on its version, and so with copy_data().
  c10::DataPtr allocate(size_t bytes) const { return make(bytes); }
  c10::DataPtr allocate(size_t bytes) { return make(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }

  c10::DeleterFnPtr raw_deleter() const override { return &free_anywhere; }

 private:
  static c10::DataPtr make(size_t bytes) {
    void* data = nullptr;
    if (bytes >= wire::kSmallestCarried) {
      if (arena::Arena* arena = arena::Arena::of_this_process())
        data = arena->allocate(bytes).release_context();
    }
    if (!data) data = usual->raw_allocate(bytes);
    return {data, data, &free_anywhere, c10::Device(c10::DeviceType::CPU)};
  }
};

}  // namespace

void use_shared_allocator() {
  static std::atomic<bool> used{false};
  if (used.exchange(true)) return;
  usual = c10::GetCPUAllocator();
  if (!usual->raw_deleter()) {
    used = false;
    throw Error(
        ErrorCode::kInvalidArgument,
        "use_shared_allocator() cannot stand before the allocator that this program has set "
        "for CPU tensors: that one has no raw_deleter()");
  }
  constexpr uint8_t kFirst = 255;  // no other one replaces it
  c10::SetCPUAllocator(new SharedAllocator, kFirst);
}

}  // namespace weft

// SPDX-License-Identifier: BSD-3-Clause
#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>

namespace weft::base {

namespace {

std::atomic<uint32_t> depth{0};

// One bit for each descriptor below 2^20, the most that Linux gives a process by default. It is not
// a container under a lock, because another thread may be changing it when this one forks. Pages
// without a descriptor are never touched.
constexpr int kDescriptors = 1 << 20;
constexpr int kBits = 64;
std::atomic<uint64_t> to_close[kDescriptors / kBits];
std::atomic<int> highest{-1};

void close_inherited() noexcept {
  const int last = highest.load(std::memory_order_relaxed);
  for (int word = 0; word <= last / kBits && last >= 0; ++word) {
    uint64_t bits = to_close[word].exchange(0, std::memory_order_relaxed);
    for (; bits; bits &= bits - 1) ::close(word * kBits + __builtin_ctzll(bits));
  }
}

void become_child() noexcept {
  depth.fetch_add(1, std::memory_order_relaxed);
  close_inherited();
}

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, &become_child);

}  // namespace

uint32_t fork_depth() noexcept { return depth.load(std::memory_order_relaxed); }

void close_in_forked_child(int descriptor) noexcept {
  if (descriptor < 0 || descriptor >= kDescriptors) return;
  to_close[descriptor / kBits].fetch_or(uint64_t{1} << (descriptor % kBits),
                                        std::memory_order_relaxed);
  int seen = highest.load(std::memory_order_relaxed);
  while (seen < descriptor &&
         !highest.compare_exchange_weak(seen, descriptor, std::memory_order_relaxed)) {
  }
}

void keep_in_forked_child(int descriptor) noexcept {
  if (descriptor < 0 || descriptor >= kDescriptors) return;
  to_close[descriptor / kBits].fetch_and(~(uint64_t{1} << (descriptor % kBits)),
                                         std::memory_order_relaxed);
}

}  // namespace weft::base

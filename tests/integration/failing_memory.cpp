// SPDX-License-Identifier: BSD-3-Clause
#include "failing_memory.h"

#include <execinfo.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

#include "support/sanitizers.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> armed{false};
std::atomic<int64_t> until_first{0};
std::atomic<int64_t> left{0};
std::atomic<std::size_t> smallest{0};
std::atomic<Clock::rep> end{0};
std::atomic<int64_t> failed{0};

[[maybe_unused]] bool fails_now(std::size_t bytes) {
  if (!armed.load(std::memory_order_acquire) || bytes < smallest) return false;
  if (until_first.fetch_sub(1) > 0) return false;
  if (left.fetch_sub(1) <= 0 || Clock::now().time_since_epoch().count() > end) {
    armed = false;
    return false;
  }
  ++failed;
  return true;
}

// Whoever ends a worker because it did not expect that memory can lack: where was that?
[[noreturn]] void say_where() {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  std::abort();
}

}  // namespace

void fail_allocations(const Shortage& shortage) {
  std::set_terminate(say_where);
  armed = false;
  until_first = shortage.after;
  left = shortage.count;
  smallest = static_cast<std::size_t>(shortage.at_least);
  end = (Clock::now() + shortage.period).time_since_epoch().count();
  armed.store(true, std::memory_order_release);
}

int64_t failed_allocations() { return failed; }

}  // namespace weft::test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

void* allocate(std::size_t bytes) {
  if (weft::test::fails_now(bytes)) return nullptr;
  return std::malloc(bytes ? bytes : 1);
}

void* allocate(std::size_t bytes, std::align_val_t alignment) {
  if (weft::test::fails_now(bytes)) return nullptr;
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}

void* or_throw(void* memory) {
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The array forms call these.
void* operator new(std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignment);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif

// SPDX-License-Identifier: BSD-3-Clause
#include "wire/receive_pool.h"

#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "weft/error.h"

namespace weft::wire {
namespace {

constexpr size_t kMegabyte = 1 << 20;

TEST(ReceivePool, ABlockThatCameBackServesTheNextTensor) {
  const auto pool = std::make_shared<ReceivePool>(16 * kMegabyte);
  void* first;
  {
    const c10::DataPtr memory = pool->allocate(kMegabyte);
    first = memory.get();
    EXPECT_EQ(pool->kept_bytes(), 0u);
  }
  EXPECT_EQ(pool->kept_bytes(), kMegabyte);

  const c10::DataPtr again = pool->allocate(kMegabyte);

  EXPECT_EQ(again.get(), first);
  EXPECT_EQ(pool->kept_bytes(), 0u);
}

TEST(ReceivePool, ABlockMayBeAQuarterTooLargeAndNoMore) {
  const auto pool = std::make_shared<ReceivePool>(16 * kMegabyte);
  void* block = pool->allocate(kMegabyte).get();

  EXPECT_NE(pool->allocate(kMegabyte / 2).get(), block);
  EXPECT_NE(pool->allocate(kMegabyte + 1).get(), block);
  EXPECT_EQ(pool->allocate(kMegabyte * 9 / 10).get(), block);
}

TEST(ReceivePool, GivesBackWhatItKeeps) {
  const auto pool = std::make_shared<ReceivePool>(16 * kMegabyte);
  const c10::DataPtr used = pool->allocate(kMegabyte);
  pool->allocate(kMegabyte);
  ASSERT_EQ(pool->kept_bytes(), kMegabyte);

  pool->clear();

  EXPECT_EQ(pool->kept_bytes(), 0u);
  std::memset(used.get(), 1, kMegabyte);
}

TEST(ReceivePool, SmallMemoryIsNotKept) {
  const auto pool = std::make_shared<ReceivePool>(16 * kMegabyte);

  std::memset(pool->allocate(1000).get(), 1, 1000);
  pool->allocate(0);

  EXPECT_EQ(pool->kept_bytes(), 0u);
}

TEST(ReceivePool, KeepsNoMoreThanItMay) {
  const auto pool = std::make_shared<ReceivePool>(3 * kMegabyte);
  {
    std::vector<c10::DataPtr> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(pool->allocate(kMegabyte));
  }

  EXPECT_EQ(pool->kept_bytes(), 3 * kMegabyte);
}

TEST(ReceivePool, MemoryOutlivesThePoolsOwner) {
  auto pool = std::make_shared<ReceivePool>(16 * kMegabyte);
  c10::DataPtr memory = pool->allocate(kMegabyte);

  pool.reset();
  std::memset(memory.get(), 7, kMegabyte);

  EXPECT_EQ(static_cast<const char*>(memory.get())[kMegabyte - 1], 7);
}

TEST(ReceivePool, AClaimTakesAddressesAndNoMemory) {
  const auto pool = std::make_shared<ReceivePool>(0);
#if defined(__SANITIZE_THREAD__)
  constexpr size_t kClaim = size_t{1} << 32;  // the rest of the addresses is the sanitizer's
#else
  constexpr size_t kClaim = size_t{1} << 40;
#endif

  const c10::DataPtr memory = pool->allocate(kClaim);
  static_cast<char*>(memory.get())[kClaim - 1] = 1;

  EXPECT_NE(memory.get(), nullptr);
}

TEST(ReceivePool, SaysWhenThereIsNone) {
  const auto pool = std::make_shared<ReceivePool>(0);

  try {
    pool->allocate(size_t{1} << 62);
    FAIL() << "no system has so much";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLimitExceeded);
  }
}

TEST(ReceivePool, ManyThreadsMayAllocateAndFree) {
  const auto pool = std::make_shared<ReceivePool>(4 * kMegabyte);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 200; ++i) {
        const c10::DataPtr memory =
            pool->allocate(kMegabyte / 2 + static_cast<size_t>(i % 7) * 50'000);
        static_cast<char*>(memory.get())[0] = static_cast<char>(t);
        ASSERT_EQ(static_cast<char*>(memory.get())[0], static_cast<char>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_LE(pool->kept_bytes(), 4 * kMegabyte);
}

}  // namespace
}  // namespace weft::wire

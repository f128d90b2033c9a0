// The window of all connections to a member.
// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/calling/shared_window.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

constexpr size_t kMax = 1 << 20;
constexpr size_t kLarge = kMax / 8;

TEST(SharedWindowTest, LimitsTheBytesOfLargeCallsAtDepthZero) {
  SharedWindow window(kMax);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(window.try_open(0, kLarge));
  EXPECT_FALSE(window.try_open(0, kLarge));
  EXPECT_TRUE(window.try_open(0, 100)) << "small calls are not counted";
  EXPECT_TRUE(window.try_open(1, kLarge)) << "nor are those of functions";
  window.close(0, kLarge, true);
  EXPECT_TRUE(window.try_open(0, kLarge));
}

TEST(SharedWindowTest, ACallLargerThanTheWindowGoesAlone) {
  SharedWindow window(kMax);
  EXPECT_TRUE(window.try_open(0, 3 * kMax));
  EXPECT_FALSE(window.try_open(0, kLarge));
  window.close(0, 3 * kMax, true);
  EXPECT_TRUE(window.try_open(0, kLarge));
}

TEST(SharedWindowTest, TellsThoseWhoWaitOnceThereIsAmpleRoom) {
  SharedWindow window(kMax);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(window.try_open(0, kLarge));
  const SharedWindow::Waiter waiter(window);
  const uint32_t sign = waiter.sign();
  window.close(0, kLarge, true);
  EXPECT_EQ(waiter.sign(), sign) << "an eighth is free";
  window.close(0, kLarge, /*has_ample_room_here=*/false);
  EXPECT_EQ(waiter.sign(), sign) << "but not at the connection";
  window.close(0, kLarge, true);
  EXPECT_NE(waiter.sign(), sign);
}

TEST(SharedWindowTest, ASignThatCameMeanwhileEndsTheWait) {
  SharedWindow window(kMax);
  SharedWindow::Waiter waiter(window);
  const uint32_t sign = waiter.sign();
  window.notify();
  waiter.wait(sign, base::Time::max());
}

}  // namespace
}  // namespace weft::rpc

// SPDX-License-Identifier: BSD-3-Clause
#include "rpc/calling/send_window.h"

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

TEST(SendWindow, HasRoomForSoManyCalls) {
  SendWindow window(2, 1000);
  window.open(0, 1);
  EXPECT_TRUE(window.has_room(0, 1));

  window.open(0, 1);
  EXPECT_FALSE(window.has_room(0, 1));

  window.close(0, 1);
  EXPECT_TRUE(window.has_room(0, 1));
}

TEST(SendWindow, HasRoomForSoManyBytes) {
  SendWindow window(100, 1000);
  window.open(0, 600);

  EXPECT_TRUE(window.has_room(0, 400));
  EXPECT_FALSE(window.has_room(0, 401));

  window.close(0, 600);
  EXPECT_TRUE(window.has_room(0, 401));
}

TEST(SendWindow, ACallLargerThanTheWindowGoesAlone) {
  SendWindow window(100, 1000);
  EXPECT_TRUE(window.has_room(0, 5000));

  window.open(0, 5000);
  EXPECT_FALSE(window.has_room(0, 1));
  EXPECT_FALSE(window.has_room(0, 5000));

  window.close(0, 5000);
  EXPECT_TRUE(window.has_room(0, 5000));
}

TEST(SendWindow, ACallLargerThanTheWindowWaitsForSmallOnes) {
  SendWindow window(100, 1000);
  window.open(0, 1);

  EXPECT_FALSE(window.has_room(0, 5000));
}

// Small calls follow each other without end; a large one that has the right to the room goes.
TEST(SendWindow, SmallCallsAreLeftOutWhereTheyDoNotCount) {
  SendWindow window(2, 10'000);
  window.open(0, 100);
  window.open(0, 200);
  EXPECT_FALSE(window.has_room(0, 50'000));
  EXPECT_TRUE(window.has_room_beside_small(0, 50'000));

  window.open(0, 6'000);
  EXPECT_FALSE(window.has_room_beside_small(0, 50'000));
  EXPECT_FALSE(window.has_room_beside_small(0, 4'001));
  EXPECT_TRUE(window.has_room_beside_small(0, 4'000));

  window.close(0, 100);
  window.close(0, 200);
  window.open(0, 4'096);
  EXPECT_FALSE(window.has_room_beside_small(0, 1)) << "two large calls";
}

TEST(SendWindow, ANestedCallNeverWaitsForTheCallThatItServes) {
  SendWindow window(1, 10);
  for (uint32_t depth = 0; depth < 100; ++depth) {
    ASSERT_TRUE(window.has_room(depth, 50)) << depth;
    window.open(depth, 50);
  }

  for (uint32_t depth = 0; depth < 100; ++depth) EXPECT_FALSE(window.has_room(depth, 1)) << depth;
  window.close(40, 50);

  EXPECT_TRUE(window.has_room(40, 50));
  EXPECT_FALSE(window.has_room(39, 1));
  EXPECT_FALSE(window.has_room(41, 1));
}

TEST(SendWindow, HasAmpleRoomIfAQuarterIsFree) {
  SendWindow window(/*calls=*/8, /*bytes=*/800);
  EXPECT_TRUE(window.has_ample_room(3));
  for (int i = 0; i < 7; ++i) window.open(0, 1);
  EXPECT_FALSE(window.has_ample_room(0));
  window.close(0, 1);
  EXPECT_TRUE(window.has_ample_room(0));
  window.open(1, 700);
  EXPECT_FALSE(window.has_ample_room(1));
  EXPECT_TRUE(window.has_ample_room(0));
}

}  // namespace
}  // namespace weft::rpc

// SPDX-License-Identifier: BSD-3-Clause
#include "rref/serial_set.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

namespace weft::rref {
namespace {

TEST(SerialSet, InOrderTakesOneInterval) {
  SerialSet set;
  for (uint64_t i = 1; i <= 1000; ++i) set.insert(i);
  EXPECT_EQ(set.intervals(), 1u);
  EXPECT_TRUE(set.contains(1) && set.contains(1000));
  EXPECT_FALSE(set.contains(0) || set.contains(1001));
}

TEST(SerialSet, AgreesWithAPlainSet) {
  std::mt19937 random(1);
  SerialSet set;
  std::set<uint64_t> plain;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t number = random() % 700;
    set.insert(number);
    plain.insert(number);
  }
  for (uint64_t number = 0; number < 701; ++number) {
    EXPECT_EQ(set.contains(number), plain.contains(number)) << number;
  }
}

}  // namespace
}  // namespace weft::rref

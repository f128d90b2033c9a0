// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/checksum.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

namespace weft::checkpoint {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
uint64_t sum(Crc64 way, std::span<const std::byte> bytes) { return ~way(~uint64_t{0}, bytes); }

std::string random_text(size_t size) {
  std::mt19937 random(7);
  std::string text(size, '\0');
  for (char& each : text) each = static_cast<char>(random());
  return text;
}

// The definition, a bit at a time.
uint64_t sum_by_bits(std::span<const std::byte> bytes) {
  uint64_t state = ~uint64_t{0};
  for (const std::byte byte : bytes) {
    state ^= static_cast<uint64_t>(byte);
    for (int i = 0; i < 8; ++i) state = (state >> 1) ^ (state & 1 ? 0xC96C5795D7870F42 : 0);
  }
  return ~state;
}

// The first is the check value of CRC-64/XZ in the catalogues of CRCs; the others are what `xz
// -lvv` says of files with these bytes.
TEST(Checksum, HasTheKnownValues) {
  std::string all;
  for (int i = 0; i < 5 * 256; ++i) all.push_back(static_cast<char>(i));
  for (const Crc64 way : crc64_ways()) {
    EXPECT_EQ(sum(way, {}), 0u);
    EXPECT_EQ(sum(way, bytes_of("123456789")), 0x995DC9BBDF1939FAu);
    EXPECT_EQ(sum(way, bytes_of(std::string(1024, 'a'))), 0xDD7CCF3EE55B7689u);
    EXPECT_EQ(sum(way, bytes_of(all)), 0xDAD07E0BAAC774FAu);
  }
}

TEST(Checksum, IsTheSameInEveryWayForEveryLengthAndAlignment) {
  const std::string text = random_text(700);
  for (size_t size = 0; size + 16 <= text.size(); ++size) {
    const auto bytes = bytes_of(text).subspan(size % 16, size);
    for (const Crc64 way : crc64_ways()) EXPECT_EQ(sum(way, bytes), sum_by_bits(bytes)) << size;
  }
}

TEST(Checksum, DoesNotDependOnHowTheBytesCome) {
  const std::string text = random_text(400);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Checksum checksum;
    checksum.add(bytes_of(text).first(cut));
    checksum.add(bytes_of(text).subspan(cut));

    EXPECT_EQ(checksum.value(), sum_by_bits(bytes_of(text))) << cut;
  }
}

TEST(Checksum, ChangesWithEveryBit) {
  std::string text = random_text(500);
  for (const Crc64 way : crc64_ways()) {
    const uint64_t whole = sum(way, bytes_of(text));
    for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_NE(sum(way, bytes_of(text)), whole) << bit;
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    }
  }
}

}  // namespace
}  // namespace weft::checkpoint

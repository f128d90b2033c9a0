// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/checksum.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

// Polynomials over GF(2) modulo that of the checksum. Bits are reflected: bit 63 is the
// coefficient of 1, bit 0 that of x^63.
constexpr uint64_t kPolynomial = 0xC96C5795D7870F42;

constexpr uint64_t times_x(uint64_t polynomial) {
  return (polynomial >> 1) ^ (polynomial & 1 ? kPolynomial : 0);
}

// --- by tables ---------------------------------------------------------------------------------

constexpr size_t kWord = sizeof(uint64_t);
using Table = std::array<uint64_t, 256>;

// Table i has for each value of a byte its contribution if i more bytes follow it.
constexpr std::array<Table, kWord> kTables = [] {
  std::array<Table, kWord> tables{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    uint64_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = times_x(state);
    tables[0][byte] = state;
  }
  for (size_t i = 1; i < kWord; ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint64_t before = tables[i - 1][byte];
      tables[i][byte] = tables[0][before & 0xff] ^ (before >> 8);
    }
  }
  return tables;
}();

uint64_t word_at(const std::byte* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, kWord);
  return word;
}

uint64_t by_tables(uint64_t state, std::span<const std::byte> bytes) {
  for (; bytes.size() >= kWord; bytes = bytes.subspan(kWord)) {
    const uint64_t word = state ^ word_at(bytes.data());
    state = 0;
    for (size_t i = 0; i < kWord; ++i) state ^= kTables[kWord - 1 - i][(word >> (8 * i)) & 0xff];
  }
  for (const std::byte byte : bytes) {
    state = kTables[0][(state ^ static_cast<uint8_t>(byte)) & 0xff] ^ (state >> 8);
  }
  return state;
}

// --- by multiplication -------------------------------------------------------------------------

#if defined(__x86_64__)

constexpr uint64_t power_of_x(int exponent) {
  uint64_t power = uint64_t{1} << 63;  // one
  for (int i = 0; i < exponent; ++i) power = times_x(power);
  return power;
}

#define WEFT_MULTIPLIES __attribute__((target("pclmul")))

// Sixteen bytes of the message, as a polynomial, moved to where `distance` more bits have followed.
// A product of reflected factors comes out one bit further, hence the exponents less one.
WEFT_MULTIPLIES inline __m128i moved(__m128i bytes, __m128i factors) {
  return _mm_xor_si128(_mm_clmulepi64_si128(bytes, factors, 0x00),
                       _mm_clmulepi64_si128(bytes, factors, 0x11));
}
template <int distance>
WEFT_MULTIPLIES inline __m128i factors_for() {
  constexpr uint64_t kFirst = power_of_x(distance + 64 - 1), kSecond = power_of_x(distance - 1);
  return _mm_set_epi64x(static_cast<long long>(kSecond), static_cast<long long>(kFirst));
}
WEFT_MULTIPLIES inline __m128i load(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// The message is a polynomial, and the checksum is its remainder modulo another polynomial. Sixteen
// bytes may therefore be replaced by their product with a power of x, further on in the message.
// Doing so with four times sixteen bytes at once keeps the multiplier busy. Sixteen bytes are left
// at the end.
WEFT_MULTIPLIES uint64_t by_multiplication(uint64_t state, std::span<const std::byte> bytes) {
  constexpr size_t kPiece = 16, kPieces = 4, kBlock = kPiece * kPieces;
  if (bytes.size() < 2 * kBlock) return by_tables(state, bytes);
  __m128i pieces[kPieces];
  for (size_t i = 0; i < kPieces; ++i) pieces[i] = load(bytes.data() + i * kPiece);
  pieces[0] = _mm_xor_si128(pieces[0], _mm_set_epi64x(0, static_cast<long long>(state)));
  bytes = bytes.subspan(kBlock);

  const __m128i by_block = factors_for<8 * kBlock>();
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) {
    for (size_t i = 0; i < kPieces; ++i) {
      pieces[i] = _mm_xor_si128(moved(pieces[i], by_block), load(bytes.data() + i * kPiece));
    }
  }
  const __m128i by_piece = factors_for<8 * kPiece>();
  for (size_t i = 1; i < kPieces; ++i) {
    pieces[i] = _mm_xor_si128(moved(pieces[i - 1], by_piece), pieces[i]);
  }

  std::array<std::byte, kPiece> left;
  std::memcpy(left.data(), &pieces[kPieces - 1], kPiece);
  return by_tables(by_tables(0, left), bytes);
}

#undef WEFT_MULTIPLIES

#endif

}  // namespace

const std::vector<Crc64>& crc64_ways() {
  static const std::vector<Crc64> ways = [] {
    std::vector<Crc64> all{&by_tables};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("pclmul")) all.push_back(&by_multiplication);
#endif
    return all;
  }();
  return ways;
}

}  // namespace weft::checkpoint

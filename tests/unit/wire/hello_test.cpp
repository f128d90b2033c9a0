// SPDX-License-Identifier: BSD-3-Clause
#include "wire/hello.h"

#include <gtest/gtest.h>

#include "wire/limits.h"

namespace weft::wire {
namespace {

std::vector<std::byte> encoded(const Hello& hello) {
  Encoder out;
  encode_hello(out, hello);
  return {out.payload().begin(), out.payload().end()};
}

const Hello kHello{kProtocolVersion, 4711, 1, 77, "worker1", 0, 78};

TEST(Hello, ComesBackUnchanged) { EXPECT_EQ(decode_hello(encoded(kHello)), kHello); }

TEST(Hello, OfAnotherVersionTellsItsVersionOnly) {
  Hello newer = kHello;
  newer.version = kProtocolVersion + 1;
  std::vector<std::byte> bytes = encoded(newer);
  bytes.resize(5);

  const Hello decoded = decode_hello(bytes);

  EXPECT_EQ(decoded.version, kProtocolVersion + 1);
  EXPECT_EQ(decoded.from_name, "");
}

TEST(Hello, CutAnywhereIsRefused) {
  const std::vector<std::byte> bytes = encoded(kHello);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_hello(std::span(bytes).first(size)), Error) << size;
  }
}

TEST(Hello, WithBytesBehindItIsRefused) {
  std::vector<std::byte> bytes = encoded(kHello);
  bytes.emplace_back();

  EXPECT_THROW(decode_hello(bytes), Error);
}

TEST(Hello, NamesHaveALimit) {
  Hello hello = kHello;
  hello.from_name = std::string(kMaxNameBytes, 'n');
  EXPECT_EQ(decode_hello(encoded(hello)), hello);

  hello.from_name += 'n';

  EXPECT_THROW(decode_hello(encoded(hello)), Error);
}

}  // namespace
}  // namespace weft::wire

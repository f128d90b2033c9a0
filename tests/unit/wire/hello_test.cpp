// SPDX-License-Identifier: BSD-3-Clause
#include "wire/hello.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "wire/limits.h"

namespace weft::wire {
namespace {

std::vector<std::byte> encoded(const Hello& hello) {
  Encoder out;
  encode_hello(out, hello);
  return {out.payload().begin(), out.payload().end()};
}

const Hello kHello{kProtocolVersion, kOldestVersion, Features(5), 4711, 1, 77, "worker1", 0, 78};

Hello of_versions(uint16_t oldest, uint16_t newest) {
  Hello hello = kHello;
  hello.oldest = oldest;
  hello.version = newest;
  return hello;
}

TEST(Hello, ComesBackUnchanged) { EXPECT_EQ(decode_hello(encoded(kHello)), kHello); }

TEST(Hello, HasTheBytesThatTheDocumentSays) {
  Hello hello = of_versions(3, 4);
  hello.features = Features(0x0102);
  hello.from_name = "w";

  const std::vector<std::byte> bytes = encoded(hello);

  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_EQ(text, std::string("\4\0"
                              "\3\0"
                              "\2\1\0\0\0\0\0\0"
                              "\x67\x12\0\0\0\0\0\0"
                              "\1\0\0\0"
                              "\x4d\0\0\0\0\0\0\0"
                              "\1\0\0\0w"
                              "\0\0\0\0"
                              "\x4e\0\0\0\0\0\0\0",
                              2 + 2 + 8 + 8 + 4 + 8 + 5 + 4 + 8));
}

TEST(Hello, OfALaterVersionIsReadAsFarAsItIsKnown) {
  const Hello newer = of_versions(kProtocolVersion, kProtocolVersion + 1);
  std::vector<std::byte> bytes = encoded(newer);
  bytes.resize(bytes.size() + 100, std::byte{0xff});

  EXPECT_EQ(decode_hello(bytes), newer);
}

TEST(Hello, OfVersion2TellsItsVersionOnly) {
  // group, rank, incarnation, name, rank and incarnation followed the version at once
  std::vector<std::byte> bytes(2 + 8 + 4 + 8 + 4 + 7 + 4 + 8, std::byte{0xee});
  bytes[0] = std::byte{2};
  bytes[1] = std::byte{0};

  const Hello decoded = decode_hello(bytes);

  EXPECT_EQ(decoded.version, 2);
  EXPECT_EQ(decoded.oldest, 2);
  EXPECT_EQ(decoded.from_name, "");
}

TEST(Hello, CutAnywhereIsRefused) {
  const std::vector<std::byte> bytes = encoded(kHello);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_hello(std::span(bytes).first(size)), Error) << size;
  }
}

TEST(Hello, WhoseOldestVersionIsNewerThanItsVersionIsRefused) {
  EXPECT_THROW(decode_hello(encoded(of_versions(5, 4))), Error);
}

TEST(Hello, NamesHaveALimit) {
  Hello hello = kHello;
  hello.from_name = std::string(kMaxNameBytes, 'n');
  EXPECT_EQ(decode_hello(encoded(hello)), hello);

  hello.from_name += 'n';

  EXPECT_THROW(decode_hello(encoded(hello)), Error);
}

TEST(CommonVersion, IsTheNewestThatBothSpeak) {
  EXPECT_EQ(common_version(of_versions(kProtocolVersion, kProtocolVersion)), kProtocolVersion);
  EXPECT_EQ(common_version(of_versions(kOldestVersion, kProtocolVersion + 5)), kProtocolVersion);
  EXPECT_EQ(common_version(of_versions(0, kOldestVersion)), kOldestVersion);
}

TEST(CommonVersion, IsNoneIfOneIsTooNewForTheOther) {
  const Hello newer = of_versions(kProtocolVersion + 1, kProtocolVersion + 2);

  EXPECT_EQ(common_version(newer), std::nullopt);
  EXPECT_EQ(common_version(of_versions(1, kOldestVersion - 1)), std::nullopt);
  EXPECT_EQ(describe_versions(newer),
            "the hello is of protocol versions 4 to 5, this worker speaks protocol version 3");
}

}  // namespace
}  // namespace weft::wire

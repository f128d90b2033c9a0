// SPDX-License-Identifier: BSD-3-Clause
#include "wire/call_prelude.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "wire/limits.h"

namespace weft::wire {
namespace {

std::vector<std::byte> encoded(const CallPrelude& prelude) {
  const PreludeBytes bytes(prelude);
  return {bytes.bytes().begin(), bytes.bytes().end()};
}

TEST(CallPrelude, ComesBackAndLeavesTheArguments) {
  std::vector<std::byte> bytes = encoded({7, 3, 1000, "space::add", 0xabcdef});
  bytes.push_back(std::byte{42});
  std::span<const std::byte> body = bytes;

  const CallPrelude prelude = read_prelude(kNamed, body);

  EXPECT_EQ(prelude.function, 7u);
  EXPECT_EQ(prelude.depth, 3);
  EXPECT_EQ(prelude.remaining_us, 1000u);
  EXPECT_EQ(prelude.name, "space::add");
  EXPECT_EQ(prelude.signature, 0xabcdefu);
  ASSERT_EQ(body.size(), 1u);
  EXPECT_EQ(body[0], std::byte{42});
}

TEST(CallPrelude, WithoutANameIsShort) {
  const std::vector<std::byte> bytes = encoded({7, 3, 1000, "", 0});
  std::span<const std::byte> body = bytes;

  const CallPrelude prelude = read_prelude(0, body);

  EXPECT_EQ(bytes.size(), 16u);
  EXPECT_EQ(prelude.function, 7u);
  EXPECT_TRUE(prelude.name.empty());
  EXPECT_TRUE(body.empty());
}

TEST(CallPrelude, CutAnywhereIsRefused) {
  const std::vector<std::byte> bytes = encoded({7, 3, 1000, "add", 5});
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::span<const std::byte> body = std::span(bytes).first(size);
    EXPECT_THROW(read_prelude(kNamed, body), Error) << size;
  }
}

TEST(CallPrelude, NamesHaveOneTo128Bytes) {
  const std::string longest(kMaxNameBytes, 'f');
  std::vector<std::byte> bytes = encoded({1, 0, 0, longest, 9});
  std::span<const std::byte> body = bytes;
  EXPECT_EQ(read_prelude(kNamed, body).name, longest);

  for (const uint8_t length : {0, 129}) {
    bytes[16] = static_cast<std::byte>(length);
    bytes.resize(300);
    body = bytes;
    EXPECT_THROW(read_prelude(kNamed, body), Error) << static_cast<int>(length);
  }
}

TEST(CallPrelude, ReservedBytesAreZero) {
  std::vector<std::byte> bytes = encoded({1, 0, 0, "", 0});
  bytes[6] = std::byte{1};
  std::span<const std::byte> body = bytes;

  EXPECT_THROW(read_prelude(0, body), Error);
}

TEST(CallPrelude, CarriesANote) {
  const std::vector<std::byte> note(kMaxNote, std::byte{9});
  for (const char* name : {"", "add"}) {
    const uint8_t flags = kNoted | (*name ? kNamed : 0);
    const std::vector<std::byte> bytes = encoded({7, 3, 1000, name, 5, note});
    std::span<const std::byte> body = bytes;
    const CallPrelude prelude = read_prelude(flags, body);
    EXPECT_TRUE(std::equal(note.begin(), note.end(), prelude.note.begin(), prelude.note.end()));
    EXPECT_TRUE(body.empty());
    for (size_t size = 0; size < bytes.size(); ++size) {
      body = std::span(bytes).first(size);
      EXPECT_THROW(read_prelude(flags, body), Error) << size;
    }
  }
}

TEST(Note, HasOneTo2048Bytes) {
  EXPECT_TRUE(NoteBytes({}).bytes().empty());
  EXPECT_THROW(NoteBytes(std::vector<std::byte>(kMaxNote + 1)), Error);
  for (const uint16_t length : {uint16_t{0}, uint16_t{kMaxNote + 1}}) {
    std::vector<std::byte> bytes(5000);
    std::memcpy(bytes.data(), &length, 2);
    std::span<const std::byte> body = bytes;
    EXPECT_THROW(read_note(body), Error) << length;
  }
}

TEST(FailedReply, ComesBackUnchanged) {
  Encoder out;
  encode_failed(out, {ErrorCode::kRemoteError, "std::runtime_error", "no such row: 17"});

  const FailedReply back = decode_failed(out.payload());

  EXPECT_EQ(back.code, ErrorCode::kRemoteError);
  EXPECT_EQ(back.type, "std::runtime_error");
  EXPECT_EQ(back.text, "no such row: 17");
}

TEST(FailedReply, LongTextIsCut) {
  Encoder out;
  encode_failed(out, {ErrorCode::kRemoteError, "t", std::string(1 << 20, 'x')});

  EXPECT_EQ(decode_failed(out.payload()).text.size(), 64u << 10);
}

TEST(FailedReply, HasEveryCodeThatThisVersionKnows) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kStorageFailed); ++code) {
    Encoder out;
    encode_failed(out, {static_cast<ErrorCode>(code), "", "why"});

    const FailedReply back = decode_failed(out.payload());

    EXPECT_EQ(static_cast<int>(back.code), code);
    EXPECT_EQ(back.text, "why");
  }
}

TEST(FailedReply, OfACodeOfALaterVersionKeepsItsText) {
  Encoder out;
  encode_failed(out, {static_cast<ErrorCode>(200), "", "the disk is on fire"});

  const FailedReply back = decode_failed(out.payload());

  EXPECT_EQ(back.code, ErrorCode::kBadMessage);
  EXPECT_EQ(back.text, "error code 200, which this version does not know: the disk is on fire");
}

TEST(FailedReply, WithoutACodeIsRefused) {
  Encoder out;
  encode_failed(out, {static_cast<ErrorCode>(0), "", ""});

  EXPECT_THROW(decode_failed(out.payload()), Error);
}

}  // namespace
}  // namespace weft::wire

// SPDX-License-Identifier: BSD-3-Clause
#include "wire/call_prelude.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "weft/codec.h"
#include "wire/limits.h"

namespace weft::wire {

namespace {
constexpr size_t kMaxErrorText = 64 * 1024;
}

PreludeBytes::PreludeBytes(const CallPrelude& prelude) {
  auto put = [this](const void* data, size_t n) {
    std::memcpy(bytes_ + size_, data, n);
    size_ += n;
  };
  const uint16_t zero = 0;
  put(&prelude.function, 4);
  put(&prelude.depth, 2);
  put(&zero, 2);
  put(&prelude.remaining_us, 8);
  if (!prelude.name.empty()) {
    const auto length = static_cast<uint16_t>(std::min(prelude.name.size(), kMaxNameBytes));
    put(&length, 2);
    put(prelude.name.data(), length);
    put(&prelude.signature, 8);
  }
  if (!prelude.note.empty()) {
    const NoteBytes note(prelude.note);
    put(note.bytes().data(), note.bytes().size());
  }
}

NoteBytes::NoteBytes(std::span<const std::byte> note) {
  if (note.empty()) return;
  if (note.size() > kMaxNote) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a note of {} bytes; {} at most", note.size(), kMaxNote));
  }
  const auto length = static_cast<uint16_t>(note.size());
  std::memcpy(bytes_, &length, 2);
  std::memcpy(bytes_ + 2, note.data(), note.size());
  size_ = 2 + note.size();
}

std::span<const std::byte> read_note(std::span<const std::byte>& body) {
  Decoder in(body, {});
  const size_t length = in.scalar<uint16_t>();
  if (length == 0 || length > kMaxNote || length > in.remaining()) {
    Decoder::fail(fmt::format("a note of {} bytes", length));
  }
  const auto note = in.rest().first(length);
  body = in.rest().subspan(length);
  return note;
}

CallPrelude read_prelude(uint8_t flags, std::span<const std::byte>& body) {
  Decoder in(body, {});
  CallPrelude prelude;
  prelude.function = in.scalar<uint32_t>();
  prelude.depth = in.scalar<uint16_t>();
  if (in.scalar<uint16_t>() != 0) Decoder::fail("reserved bytes of a call are not zero");
  prelude.remaining_us = in.scalar<uint64_t>();
  if (flags & kNamed) {
    const size_t length = in.scalar<uint16_t>();
    if (length == 0 || length > kMaxNameBytes || length > in.remaining()) {
      Decoder::fail(fmt::format("a function name of {} bytes", length));
    }
    prelude.name = {reinterpret_cast<const char*>(in.rest().data()), length};
    body = in.rest().subspan(length);
    Decoder tail(body, {});
    prelude.signature = tail.scalar<uint64_t>();
    body = tail.rest();
  } else {
    body = in.rest();
  }
  if (flags & kNoted) prelude.note = read_note(body);
  return prelude;
}

void encode_failed(Encoder& out, const FailedReply& failed) {
  out.scalar(static_cast<uint8_t>(failed.code));
  Codec<std::string>::encode(out, failed.type.substr(0, kMaxErrorText));
  Codec<std::string>::encode(out, failed.text.substr(0, kMaxErrorText));
}

FailedReply decode_failed(std::span<const std::byte> body) {
  Decoder in(body, {});
  const auto code = in.scalar<uint8_t>();
  if (code == 0) Decoder::fail("a failed reply without an error code");
  FailedReply failed{static_cast<ErrorCode>(code), Codec<std::string>::decode(in),
                     Codec<std::string>::decode(in)};
  in.finish();
  if (code > static_cast<uint8_t>(ErrorCode::kStorageFailed)) {
    return {ErrorCode::kBadMessage, std::move(failed.type),
            fmt::format("error code {}, which this version does not know: {}", code, failed.text)};
  }
  return failed;
}

}  // namespace weft::wire

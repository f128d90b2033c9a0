// SPDX-License-Identifier: BSD-3-Clause
#include "wire/frame.h"

#include <fmt/format.h>

#include "weft/codec.h"
#include "wire/limits.h"

namespace weft::wire {

namespace {

uint8_t allowed_flags(FrameKind kind) {
  if (kind == FrameKind::kCall) return kNamed | kNoted | kInPieces;
  if (kind == FrameKind::kReply) return kFailed | kNoted | kInPieces;
  return 0;
}

bool has_value(FrameKind kind) { return kind == FrameKind::kCall || kind == FrameKind::kReply; }

bool may_carry_tensors(const FrameHeader& header) {
  return has_value(header.kind) && !(header.flags & kFailed);
}

size_t max_body(FrameKind kind) {
  if (has_value(kind)) return kMaxBody;
  if (kind == FrameKind::kPiece) return kMaxPiece;
  return kind == FrameKind::kHello || kind == FrameKind::kGoodbye ? kMaxHelloBody : 0;
}

}  // namespace

FrameHeader read_header(const std::byte* from) {
  const auto kind = static_cast<uint8_t>(from[0]);
  if (kind < 1 || kind > kLastKind)
    Decoder::fail(fmt::format("no frame starts with byte {:#04x}", kind));
  FrameHeader header;
  std::memcpy(&header, from, kHeaderBytes);
  if (header.flags & ~allowed_flags(header.kind)) {
    Decoder::fail(fmt::format("flags {:#04x} in a frame of kind {}", header.flags, kind));
  }
  if (header.kind == FrameKind::kHello && header.id != kHelloMagic) {
    Decoder::fail(fmt::format("hello with magic {:#018x}", header.id));
  }
  if (header.body_bytes > max_body(header.kind)) {
    Decoder::fail(fmt::format("a body of {} bytes in a frame of kind {}", header.body_bytes, kind));
  }
  if (!may_carry_tensors(header) && (header.rows || header.bulk_bytes)) {
    Decoder::fail(
        fmt::format("tensors in a frame of kind {} with flags {:#04x}", kind, header.flags));
  }
  if (header.rows > kMaxRows || header.bulk_bytes > kMaxBulk) {
    Decoder::fail(fmt::format("{} tensors of {} bytes in a frame", header.rows, header.bulk_bytes));
  }
  return header;
}

}  // namespace weft::wire

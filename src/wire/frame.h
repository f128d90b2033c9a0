// Frames: what travels on a connection. docs/wire_protocol.md is the specification.
//
//   header, 24 bytes: u8 kind  u8 flags  u16 rows  u32 body bytes  u64 id  u64 bulk bytes
//   body:             tensor table (one row for a dense tensor, three for a sparse one), then what
//                     the kind says
//   bulk:             the tensors' bytes, in table order
//
// A large frame may come in pieces: first its header alone, then its content (body and bulk) in
// frames of kind kPiece. Small frames may come between them, so they never wait for a large one.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::wire {

enum class FrameKind : uint8_t {
  kHello = 1,   // first frame in each direction
  kCall = 2,    // id: the caller's number for this call
  kReply = 3,   // id: of the call
  kCancel = 4,  // id: of a call whose caller does not wait any more
  kPing = 5,    // id: echoed
  kPong = 6,
  kGoodbye = 7,  // no more frames follow; the body is a text that says why
  kPiece = 8,    // id: of the frame that is being sent in pieces; the body continues its content
};
inline constexpr uint8_t kLastKind = 8;

enum FrameFlags : uint8_t {
  kNamed = 1,     // call: carries the function's name and signature besides its number
  kFailed = 2,    // reply: the body is an error, not a value
  kNoted = 4,     // call, reply: carries a note of a layer above
  kInPieces = 8,  // call, reply: the content follows in pieces
};

/// Frames with more content are sent in pieces of this size: some 20 ms at 100 Mbit/s.
inline constexpr size_t kPieceBytes = 256 * 1024;
/// The largest piece that is accepted.
inline constexpr size_t kMaxPiece = 4 * kPieceBytes;

struct FrameHeader {
  FrameKind kind;
  uint8_t flags = 0;
  uint16_t rows = 0;
  uint32_t body_bytes = 0;
  uint64_t id = 0;
  uint64_t bulk_bytes = 0;
};
inline constexpr size_t kHeaderBytes = 24;
static_assert(sizeof(FrameHeader) == kHeaderBytes);

/// The id of a hello: nothing but a Weft worker starts a connection with it.
inline constexpr uint64_t kHelloMagic = 0x0a0d'5446'4557'8957;

/// Throws kBadMessage unless the header is one this version may send.
FrameHeader read_header(const std::byte* from);

struct Frame {
  FrameHeader header;
  std::span<const std::byte> body;  // without the tensor table
  std::vector<at::Tensor> tensors;
};

}  // namespace weft::wire

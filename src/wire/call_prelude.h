// The prelude, which comes before the arguments of a call, and the body of a failed reply.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "weft/codec.h"
#include "weft/error.h"
#include "wire/frame.h"

namespace weft::wire {

///   u32 function   u16 depth   u16 zero   u64 remaining microseconds (0: no deadline)
///   with kNamed: u16 length, name, u64 signature
///   with kNoted: a note
struct CallPrelude {
  uint32_t function = 0;
  uint16_t depth = 0;
  uint64_t remaining_us = 0;
  std::string_view name;  // empty unless kNamed
  uint64_t signature = 0;
  std::span<const std::byte> note = {};  // empty unless kNoted
};

/// A note is what a layer above sends along with a call or a reply: u16 length, bytes.
inline constexpr size_t kMaxNote = 2048;
class NoteBytes {
 public:
  /// An empty note gives no bytes.
  explicit NoteBytes(std::span<const std::byte> note);
  std::span<const std::byte> bytes() const { return {bytes_, size_}; }

 private:
  std::byte bytes_[2 + kMaxNote];
  size_t size_ = 0;
};
/// Reads a note from the front of `body` and removes it there. Throws kBadMessage.
std::span<const std::byte> read_note(std::span<const std::byte>& body);

/// The encoded prelude, without memory from the heap.
class PreludeBytes {
 public:
  explicit PreludeBytes(const CallPrelude& prelude);
  std::span<const std::byte> bytes() const { return {bytes_, size_}; }

 private:
  std::byte bytes_[16 + 2 + 128 + 8 + 2 + kMaxNote];
  size_t size_ = 0;
};

/// Reads the prelude from the front of `body` and removes it there. Throws kBadMessage.
CallPrelude read_prelude(uint8_t flags, std::span<const std::byte>& body);

/// The body of a failed reply.
struct FailedReply {
  ErrorCode code;
  std::string type;  // demangled exception type, for kRemoteError
  std::string text;
};
void encode_failed(Encoder& out, const FailedReply& failed);
/// Throws kBadMessage if the body does not decode. An error code that this build does not know
/// becomes kBadMessage, and the text names the number.
FailedReply decode_failed(std::span<const std::byte> body);

}  // namespace weft::wire

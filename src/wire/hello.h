// The first frame in each direction: who speaks, and to whom it believes to speak.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "weft/codec.h"

namespace weft::wire {

inline constexpr uint16_t kProtocolVersion = 2;

struct Hello {
  uint16_t version = kProtocolVersion;
  uint64_t group = 0;  // shared by all members of one group, unguessable
  int32_t from = 0;
  uint64_t from_incarnation = 0;
  std::string from_name;
  int32_t to = 0;
  uint64_t to_incarnation = 0;

  friend bool operator==(const Hello&, const Hello&) = default;
};

void encode_hello(Encoder& out, const Hello& hello);
/// Throws kBadMessage. A hello of another version decodes its version only.
Hello decode_hello(std::span<const std::byte> body);

}  // namespace weft::wire

// The first frame in each direction: who sends it, which worker it expects at the other end, and
// the versions and features of the sender.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "weft/codec.h"
#include "wire/features.h"

namespace weft::wire {

inline constexpr uint16_t kProtocolVersion = 3;
/// The oldest version that this build still speaks.
inline constexpr uint16_t kOldestVersion = 3;

struct Hello {
  uint16_t version = kProtocolVersion;
  uint16_t oldest = kOldestVersion;
  Features features = kOfferedFeatures;
  uint64_t group = 0;  // a secret number that all members of one group have
  int32_t from = 0;
  uint64_t from_incarnation = 0;
  std::string from_name;
  int32_t to = 0;
  uint64_t to_incarnation = 0;

  friend bool operator==(const Hello&, const Hello&) = default;
};

void encode_hello(Encoder& out, const Hello& hello);
/// Throws kBadMessage. Skips fields that later versions append. In a hello of versions 1 and 2,
/// which had another form, decodes the version only.
Hello decode_hello(std::span<const std::byte> body);

/// The newest version that both ends of a connection know; nothing if they have none in common.
std::optional<uint16_t> common_version(const Hello& theirs);
/// A text with the versions that the sender of `theirs` speaks and those that this build speaks.
std::string describe_versions(const Hello& theirs);

}  // namespace weft::wire

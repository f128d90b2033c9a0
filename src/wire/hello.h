// The first frame in each direction: the sender, the member it believes to speak to, its features.
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
  uint64_t group = 0;  // shared by all members of one group, unguessable
  int32_t from = 0;
  uint64_t from_incarnation = 0;
  std::string from_name;
  int32_t to = 0;
  uint64_t to_incarnation = 0;

  friend bool operator==(const Hello&, const Hello&) = default;
};

void encode_hello(Encoder& out, const Hello& hello);
/// Throws kBadMessage. Skips what later versions append. Of versions 1 and 2, whose hello had
/// another form, it decodes the version only.
Hello decode_hello(std::span<const std::byte> body);

/// The version that both ends of a connection speak: the newest one that both know. Nothing if they
/// have none in common.
std::optional<uint16_t> common_version(const Hello& theirs);
/// For people: the versions that the sender of `theirs` speaks and those that this build speaks.
std::string describe_versions(const Hello& theirs);

}  // namespace weft::wire

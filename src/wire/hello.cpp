// SPDX-License-Identifier: BSD-3-Clause
#include "wire/hello.h"

#include <algorithm>

#include <fmt/format.h>

#include "wire/limits.h"

namespace weft::wire {

namespace {

// From this version on the fields of a hello keep their places, and new fields are appended.
constexpr uint16_t kFirstLastingForm = 3;

std::string describe(uint16_t oldest, uint16_t newest) {
  if (oldest == newest) return fmt::format("protocol version {}", newest);
  return fmt::format("protocol versions {} to {}", oldest, newest);
}

}  // namespace

void encode_hello(Encoder& out, const Hello& hello) {
  out.scalar(hello.version);
  out.scalar(hello.oldest);
  out.scalar(hello.features.bits());
  out.scalar(hello.group);
  out.scalar(hello.from);
  out.scalar(hello.from_incarnation);
  Codec<std::string>::encode(out, hello.from_name);
  out.scalar(hello.to);
  out.scalar(hello.to_incarnation);
}

Hello decode_hello(std::span<const std::byte> body) {
  if (body.size() > kMaxHelloBody) Decoder::fail(fmt::format("hello of {} bytes", body.size()));
  Decoder in(body, {});
  Hello hello;
  hello.version = in.scalar<uint16_t>();
  if (hello.version < kFirstLastingForm) {
    hello.oldest = hello.version;
    return hello;
  }
  hello.oldest = in.scalar<uint16_t>();
  if (hello.oldest > hello.version) {
    Decoder::fail(fmt::format("hello of versions {} to {}", hello.oldest, hello.version));
  }
  hello.features = Features(in.scalar<uint64_t>());
  hello.group = in.scalar<uint64_t>();
  hello.from = in.scalar<int32_t>();
  hello.from_incarnation = in.scalar<uint64_t>();
  hello.from_name = Codec<std::string>::decode(in);
  if (hello.from_name.size() > kMaxNameBytes) {
    Decoder::fail(fmt::format("hello with a name of {} bytes", hello.from_name.size()));
  }
  hello.to = in.scalar<int32_t>();
  hello.to_incarnation = in.scalar<uint64_t>();
  return hello;  // the remaining bytes are fields of a later version
}

std::optional<uint16_t> common_version(const Hello& theirs) {
  const uint16_t newest = std::min(theirs.version, kProtocolVersion);
  if (newest < theirs.oldest || newest < kOldestVersion) return std::nullopt;
  return newest;
}

std::string describe_versions(const Hello& theirs) {
  return fmt::format("the hello is of {}, this worker speaks {}",
                     describe(theirs.oldest, theirs.version),
                     describe(kOldestVersion, kProtocolVersion));
}

}  // namespace weft::wire

// SPDX-License-Identifier: BSD-3-Clause
#include "wire/hello.h"

#include <fmt/format.h>

#include "wire/limits.h"

namespace weft::wire {

void encode_hello(Encoder& out, const Hello& hello) {
  out.scalar(hello.version);
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
  if (hello.version != kProtocolVersion) return hello;
  hello.group = in.scalar<uint64_t>();
  hello.from = in.scalar<int32_t>();
  hello.from_incarnation = in.scalar<uint64_t>();
  hello.from_name = Codec<std::string>::decode(in);
  if (hello.from_name.size() > kMaxNameBytes) {
    Decoder::fail(fmt::format("hello with a name of {} bytes", hello.from_name.size()));
  }
  hello.to = in.scalar<int32_t>();
  hello.to_incarnation = in.scalar<uint64_t>();
  in.finish();
  return hello;
}

}  // namespace weft::wire

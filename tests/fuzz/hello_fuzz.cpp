// Bytes of a stranger who connected: only a hello may come out, and one that decodes encodes to the
// bytes it began with; what lies behind them changes nothing.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "weft/error.h"
#include "wire/frame_decoder.h"
#include "wire/hello.h"
#include "wire/limits.h"

namespace weft::wire {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Anything else a decoder throws is a finding.
template <typename F>
void expect_bad_message_at_most(F body) {
  try {
    body();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kBadMessage);
  }
}

void check(std::span<const std::byte> body) {
  const Hello hello = decode_hello(body);
  const std::optional<uint16_t> version = common_version(hello);
  require(hello.oldest <= hello.version);
  require(!version || (*version >= hello.oldest && *version <= hello.version));
  require(!describe_versions(hello).empty());
  if (hello.version < 3) return require(!version);
  require(hello.from_name.size() <= kMaxNameBytes);
  Encoder again;
  encode_hello(again, hello);
  require(again.payload().size() <= body.size());
  require(std::ranges::equal(again.payload(), body.first(again.payload().size())));
  require(decode_hello(again.payload()) == hello);
}

void receive(std::span<const std::byte> bytes) {
  static const auto pool = std::make_shared<ReceivePool>(0);
  FrameDecoder decoder(pool);
  decoder.expect_hello();
  Frame frame;
  while (!bytes.empty()) {
    const std::span<std::byte> into = decoder.prepare();
    const size_t n = std::min(into.size(), bytes.size());
    std::memcpy(into.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    decoder.commit(n);
    while (decoder.next(frame)) {
      require(frame.header.kind == FrameKind::kHello);
      require(frame.tensors.empty());
      check(frame.body);
    }
    require(decoder.buffer_bytes() <= 64 * 1024);
  }
}

}  // namespace
}  // namespace weft::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::wire;
  const auto bytes = std::as_bytes(std::span(data, size));
  expect_bad_message_at_most([&] { receive(bytes); });
  expect_bad_message_at_most([&] { check(bytes); });
  return 0;
}

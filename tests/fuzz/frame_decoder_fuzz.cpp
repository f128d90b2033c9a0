// Arbitrary bytes in arbitrary pieces: the same frames come out as when all bytes come at once,
// memory follows the bytes that came, and whatever a frame carries can be walked.
//
// Input: a byte (low half: how many piece sizes follow; top bit: a hello must come first), the
// piece sizes, which are used in turn, then the stream.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "weft/error.h"
#include "wire/call_prelude.h"
#include "wire/frame_decoder.h"
#include "wire/hello.h"

namespace weft::wire {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Runs `body`; true if it refused the bytes: as malformed, or because the system has no addresses
// for what they claim. Anything else is a finding.
template <typename F>
bool refuses(F body) {
  try {
    body();
    return false;
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kBadMessage || error.code() == ErrorCode::kLimitExceeded);
    return true;
  }
}

size_t digest(std::span<const std::byte> bytes) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

struct Seen {
  FrameKind kind;
  uint64_t id;
  size_t contents;
  size_t tensors;
  friend bool operator==(const Seen&, const Seen&) = default;
};

// What came out of a stream, whether it was refused in the end, and the most memory it took.
struct Outcome {
  std::vector<Seen> frames;
  bool refused = false;
  size_t tensor_bytes = 0;
};

void walk_body(const Frame& frame) {
  std::span<const std::byte> body = frame.body;
  switch (frame.header.kind) {
    case FrameKind::kHello:
      decode_hello(body);
      break;
    case FrameKind::kCall:
      read_prelude(frame.header.flags, body);
      break;
    case FrameKind::kReply:
      if (frame.header.flags & kNoted) read_note(body);
      if (frame.header.flags & kFailed) decode_failed(body);
      break;
    default:
      break;
  }
}

void walk(const Frame& frame, Outcome& outcome) {
  refuses([&] { walk_body(frame); });
  size_t contents = digest(frame.body);
  for (const at::Tensor& tensor : frame.tensors) {
    if (!tensor.defined() || tensor.is_sparse()) continue;
    const size_t bytes = tensor.storage().nbytes();
    outcome.tensor_bytes += bytes;
    contents ^= digest({static_cast<const std::byte*>(tensor.storage().data()), bytes});
  }
  outcome.frames.push_back({frame.header.kind, frame.header.id, contents, frame.tensors.size()});
}

class PieceSizes {
 public:
  explicit PieceSizes(std::span<const std::byte> sizes) : sizes_(sizes) {}
  size_t next() {
    if (sizes_.empty()) return SIZE_MAX;
    const auto size = static_cast<size_t>(sizes_[at_++ % sizes_.size()]);
    return size < 128 ? size + 1 : size_t{1} << (size % 16);
  }

 private:
  std::span<const std::byte> sizes_;
  size_t at_ = 0;
};

void feed(std::span<const std::byte> stream, PieceSizes sizes, bool hello_first, Outcome& outcome) {
  static const auto pool = std::make_shared<ReceivePool>(1 << 20);
  FrameDecoder decoder(pool);
  if (hello_first) decoder.expect_hello();
  Frame frame;
  size_t fed = 0;
  while (fed < stream.size()) {
    const std::span<std::byte> into = decoder.prepare();
    require(!into.empty());
    const size_t n = std::min({into.size(), stream.size() - fed, sizes.next()});
    std::memcpy(into.data(), stream.data() + fed, n);
    fed += n;
    decoder.commit(n);
    while (decoder.next(frame)) {
      require(!hello_first || !outcome.frames.empty() || frame.header.kind == FrameKind::kHello);
      decoder.expect_any();
      walk(frame, outcome);
    }
    require(decoder.buffer_bytes() <= 128 * 1024 + 4 * fed);
    require(outcome.tensor_bytes <= fed);
  }
}

Outcome decode(std::span<const std::byte> stream, PieceSizes sizes, bool hello_first) {
  Outcome outcome;
  outcome.refused = refuses([&] { feed(stream, sizes, hello_first, outcome); });
  return outcome;
}

}  // namespace
}  // namespace weft::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::wire;
  if (size == 0) return 0;
  const bool hello_first = data[0] & 0x80;
  const size_t count = std::min<size_t>(data[0] & 15, size - 1);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const auto stream = bytes.subspan(count);

  const Outcome at_once = decode(stream, PieceSizes({}), hello_first);
  const Outcome in_pieces = decode(stream, PieceSizes(bytes.first(count)), hello_first);

  require(at_once.frames == in_pieces.frames);
  require(at_once.refused == in_pieces.refused);
  return 0;
}

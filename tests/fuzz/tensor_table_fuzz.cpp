// Tensor tables inside whole frames: a row that is accepted describes memory that was received, so
// every element of every tensor can be touched.
//
// Input: u8 rows, u8 mode, u16 bytes of the table, the table, the tensors' bytes. Mode 0 announces
// the bytes that follow; mode 1 announces what the table says and makes up missing bytes as long as
// they are few; mode 2 announces that and lets the stream end early. With 128 added a carrier has
// the bytes of rows that say so.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "weft/error.h"
#include "wire/frame_decoder.h"
#include "wire/tensor_entry.h"

namespace weft::wire {
namespace {

constexpr uint64_t kMostMadeUp = 1 << 20;
constexpr int64_t kMostTouched = 4096;

void require(bool holds) {
  if (!holds) std::abort();
}

template <typename F>
void expect_bad_message_at_most(F body) {
  try {
    body();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kBadMessage || error.code() == ErrorCode::kLimitExceeded);
  }
}

void touch_element(const std::byte* at, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    [[maybe_unused]] volatile std::byte read = at[i];
  }
}

// By hand: libtorch's own loops are not instrumented.
void touch_dense(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const auto* data = static_cast<const std::byte*>(tensor.data_ptr());
  const auto item = static_cast<int64_t>(tensor.element_size());
  const auto dimensions = static_cast<size_t>(tensor.dim());
  int64_t last = 0;
  for (size_t d = 0; d < dimensions; ++d) last += (tensor.sizes()[d] - 1) * tensor.strides()[d];
  require((last + 1) * item <= static_cast<int64_t>(tensor.storage().nbytes()));
  touch_element(data + last * item, tensor.element_size());

  std::vector<int64_t> index(dimensions);
  for (int64_t n = std::min(tensor.numel(), kMostTouched); n > 0; --n) {
    int64_t offset = 0;
    for (size_t d = 0; d < dimensions; ++d) offset += index[d] * tensor.strides()[d];
    touch_element(data + offset * item, tensor.element_size());
    for (size_t d = dimensions; d-- > 0;) {
      if (++index[d] < tensor.sizes()[d]) break;
      index[d] = 0;
    }
  }
}

void touch(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (!tensor.is_sparse()) return touch_dense(tensor);
  require(tensor._indices().size(1) == tensor._values().size(0));
  touch_dense(tensor._indices());
  touch_dense(tensor._values());
}

// A row that is accepted encodes to the bytes it came from. Returns what the rows need in all.
uint64_t check_rows(std::span<const std::byte> table, size_t rows) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < rows; ++i) {
    const std::span<const std::byte> before = table;
    const TensorEntry entry = read_entry(table);
    TensorEntry in_frame = entry;
    in_frame.flags &= static_cast<uint8_t>(~kCarried);
    std::vector<char> again;
    append_entry(again, in_frame);
    if (entry.flags & kCarried) {
      std::vector<char> carried;
      append_carried(carried, std::as_bytes(std::span(again)), entry.place);
      again = std::move(carried);
    }
    require(std::ranges::equal(std::as_bytes(std::span(again)),
                               before.first(before.size() - table.size())));
    bytes += entry.bytes_in_frame();
  }
  return bytes;
}

void feed(FrameDecoder& decoder, std::span<const std::byte> bytes) {
  Frame frame;
  while (!bytes.empty()) {
    const std::span<std::byte> into = decoder.prepare();
    const size_t n = std::min(into.size(), bytes.size());
    std::memcpy(into.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    decoder.commit(n);
    while (decoder.next(frame)) {
      for (const at::Tensor& tensor : frame.tensors) touch(tensor);
    }
  }
}

// Has bytes for the first 4096 places.
class FewPlaces final : public Carrier {
 public:
  void stage(Encoder::OutgoingTensor&) override {}
  std::optional<Place> place(const Encoder::OutgoingTensor&) override { return std::nullopt; }
  size_t untaken_bytes() override { return 0; }
  c10::DataPtr take(const Place& place, size_t bytes) override {
    const size_t at = place.size == 0 ? 0 : static_cast<size_t>(place.bytes[0]);
    if (bytes > kBytes - at) Decoder::fail("no such place");
    void* data = std::malloc(bytes + 1);
    std::memset(data, 0, bytes + 1);
    return {data, data, &std::free, c10::Device(c10::DeviceType::CPU)};
  }

 private:
  static constexpr size_t kBytes = 4096;
};

void check(size_t rows, uint8_t mode, std::span<const std::byte> table,
           std::span<const std::byte> bulk) {
  std::vector<std::byte> sent(bulk.begin(), bulk.end());
  FrameHeader header{FrameKind::kReply};
  header.rows = static_cast<uint16_t>(rows);
  header.body_bytes = static_cast<uint32_t>(table.size());
  header.bulk_bytes = bulk.size();
  if ((mode & 127) % 3 > 0) header.bulk_bytes = check_rows(table, rows);
  if ((mode & 127) % 3 == 1 && header.bulk_bytes <= kMostMadeUp) sent.resize(header.bulk_bytes);

  static const auto pool = std::make_shared<ReceivePool>(1 << 20);
  FrameDecoder decoder(pool);
  FewPlaces places;
  if (mode & 128) decoder.use_carrier(&places);
  feed(decoder, std::as_bytes(std::span(&header, 1)));
  feed(decoder, table);
  feed(decoder, sent);
}

}  // namespace
}  // namespace weft::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::wire;
  if (size < 4) return 0;
  uint16_t wanted;
  std::memcpy(&wanted, data + 2, 2);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(4);
  const size_t table = std::min<size_t>(wanted, bytes.size());
  expect_bad_message_at_most(
      [&] { check(data[0], data[1], bytes.first(table), bytes.subspan(table)); });
  return 0;
}

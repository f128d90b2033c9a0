// SPDX-License-Identifier: BSD-3-Clause
#include "wire/outbox.h"

#include <algorithm>
#include <cstring>

namespace weft::wire {

namespace {
constexpr size_t kCopiedTensor = 4096;  // up to here copying beats a further iovec

template <typename T>
std::byte* put(std::byte* to, std::span<T> bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  return to + bytes.size();
}
}  // namespace

std::byte* Outbox::extend(size_t n) {
  const size_t size = small_.size();
  small_.resize(size + n);
  return small_.data() + size;
}

void Outbox::add(FrameHeader header, std::span<const std::byte> body) {
  header.body_bytes = static_cast<uint32_t>(body.size());
  std::byte* to = extend(kHeaderBytes + body.size());
  std::memcpy(to, &header, kHeaderBytes);
  put(to + kHeaderBytes, body);
}

void Outbox::add(FrameHeader header, std::span<const std::byte> prelude, const Encoder& value) {
  const auto entries = value.tensor_entries();
  const auto payload = value.payload();
  header.tensors = static_cast<uint16_t>(value.tensors().size());
  header.bulk_bytes = value.tensor_bytes();
  header.body_bytes = static_cast<uint32_t>(entries.size() + prelude.size() + payload.size());

  size_t copied = 0;
  for (const auto& tensor : value.tensors()) {
    if (tensor.bytes <= kCopiedTensor) copied += tensor.bytes;
  }
  const size_t fixed = kHeaderBytes + header.body_bytes;
  std::byte* to = extend(fixed + copied);
  std::memcpy(to, &header, kHeaderBytes);
  to = put(put(put(to + kHeaderBytes, entries), prelude), payload);
  for (const auto& tensor : value.tensors()) {
    const auto* data = static_cast<const std::byte*>(tensor.data);
    if (tensor.bytes <= kCopiedTensor) {
      to = put(to, std::span(data, tensor.bytes));
    } else {
      large_.push_back({static_cast<size_t>(to - small_.data()), data, tensor.bytes, tensor.keep});
      large_bytes_ += tensor.bytes;
    }
  }
}

int Outbox::gather(iovec* pieces, int limit) const {
  int count = 0;
  size_t at = written_;
  for (size_t i = next_large_; i < large_.size() && count + 1 < limit; ++i) {
    const Large& large = large_[i];
    if (large.position > at) {
      pieces[count++] = {const_cast<std::byte*>(small_.data()) + at, large.position - at};
      at = large.position;
    }
    pieces[count++] = {const_cast<std::byte*>(large.data), large.bytes};
    if (count + 1 >= limit && i + 1 < large_.size()) return count;
  }
  if (at < small_.size() && count < limit) {
    pieces[count++] = {const_cast<std::byte*>(small_.data()) + at, small_.size() - at};
  }
  return count;
}

void Outbox::consume(size_t n) {
  while (n > 0) {
    const bool large_next = next_large_ < large_.size() && large_[next_large_].position == written_;
    if (large_next) {
      Large& large = large_[next_large_];
      const size_t part = std::min(n, large.bytes);
      large.data += part;
      large.bytes -= part;
      large_bytes_ -= part;
      n -= part;
      if (large.bytes == 0) {
        large.keep.reset();
        ++next_large_;
      }
      continue;
    }
    const size_t end = next_large_ < large_.size() ? large_[next_large_].position : small_.size();
    const size_t part = std::min(n, end - written_);
    written_ += part;
    n -= part;
  }
  if (empty()) clear();
}

void Outbox::clear() {
  if (small_.capacity() > (1 << 20)) {
    small_ = {};
  } else {
    small_.clear();
  }
  large_.clear();
  written_ = next_large_ = large_bytes_ = 0;
}

}  // namespace weft::wire

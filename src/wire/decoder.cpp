// The class Decoder of weft/codec.h.
// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "weft/codec.h"
#include "wire/limits.h"

namespace weft {

void Decoder::fail(const std::string& what) { throw Error(ErrorCode::kBadMessage, what); }

void Decoder::fail_truncated(size_t wanted) const {
  fail(fmt::format("value ends early: {} bytes wanted, {} left", wanted, remaining()));
}

bool Decoder::boolean() {
  const auto value = scalar<uint8_t>();
  if (value > 1) fail(fmt::format("a bool of value {}", value));
  return value == 1;
}

size_t Decoder::length(size_t bytes_each) {
  const size_t count = scalar<uint32_t>();
  if (count > remaining() / bytes_each) {
    fail(fmt::format("a container claims {} elements, {} bytes are left", count, remaining()));
  }
  return count;
}

size_t Decoder::sequence_length() {
  const size_t count = scalar<uint32_t>();
  const size_t possible = remaining() + (tensors_.size() - next_tensor_);
  if (count > possible) {
    fail(fmt::format("a container claims {} elements, {} bytes and tensors are left", count,
                     possible));
  }
  return count;
}

at::Tensor Decoder::tensor() {
  if (next_tensor_ >= tensors_.size()) {
    fail(fmt::format("value refers to more tensors than came with it: {}", tensors_.size()));
  }
  return std::move(tensors_[next_tensor_++]);
}

void Decoder::finish() const {
  if (remaining() != 0) fail(fmt::format("{} bytes too many after the value", remaining()));
  if (next_tensor_ != tensors_.size()) {
    fail(fmt::format("{} tensors came, {} were expected", tensors_.size(), next_tensor_));
  }
}

void Decoder::enter() {
  if (++depth_ > wire::kMaxNesting) {
    --depth_;
    fail(fmt::format("values nest deeper than {}", wire::kMaxNesting));
  }
}

}  // namespace weft

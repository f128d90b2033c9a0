// The bytes of a call's arguments, a result or an error: they decode to a value, which encodes to
// bytes that decode to the same value, or are refused as kBadMessage.
//
// Input: a byte that says what to decode, then the bytes.
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdlib>

#include "weft/codec.h"
#include "wire/call_prelude.h"
#include "wire/limits.h"
#include "wire/receive_pool.h"
#include "wire/received_tensor.h"

namespace weft::wire {
namespace {

enum class Color : uint8_t { kRed, kGreen, kBlue };

struct Point {
  int32_t x = 0;
  double y = 0;
  bool on = false;
};

struct Tree {
  int16_t value = 0;
  std::vector<Tree> children;
};

struct Nothing {};

struct Rich {
  uint8_t small = 0;
  std::string text;
  std::vector<std::string> texts;
  std::optional<Point> maybe;
  std::variant<std::monostate, int64_t, std::string, std::vector<Point>> either;
  std::map<std::string, std::vector<int32_t>> by_name;
  std::unordered_map<uint16_t, Point> by_number;
  std::set<int32_t> some;
  std::tuple<bool, Color, std::pair<float, int8_t>> few;
  std::array<std::optional<uint16_t>, 3> three;
  std::chrono::nanoseconds took{};
  std::chrono::system_clock::time_point at;
  std::vector<bool> bits;
  at::Tensor tensor;
  std::vector<std::optional<at::Tensor>> tensors;
  Tree tree;
  Nothing nothing;
};

void require(bool holds) {
  if (!holds) std::abort();
}

at::Tensor received(uint8_t flags, int64_t size) {
  TensorEntry row;
  row.flags = flags;
  if (flags & kUndefined) return make_received_tensor(row, {});
  row.dtype = c10::ScalarType::Float;
  row.dimensions = 1;
  row.sizes[0] = size;
  row.bytes = static_cast<uint64_t>(size) * sizeof(float);
  static const auto pool = std::make_shared<ReceivePool>(0);
  return make_received_tensor(row, pool->allocate(row.bytes));
}

const std::vector<at::Tensor>& tensor_table() {
  static const auto* table = new std::vector<at::Tensor>{
      received(0, 3), received(kUndefined, 0), received(kRequiresGrad, 0), received(0, 1)};
  return *table;
}

template <typename T>
T decode(std::span<const std::byte> bytes, std::vector<at::Tensor> tensors) {
  Decoder in(bytes, tensors);
  T value = Codec<T>::decode(in);
  in.finish();
  return value;
}

std::vector<at::Tensor> tensors_of(const Encoder& out) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : out.tensors()) tensors.push_back(each.keep);
  return tensors;
}

template <typename T>
void check_value(std::span<const std::byte> bytes, size_t tensors) {
  const auto& table = tensor_table();
  const T value = decode<T>(bytes, {table.begin(), table.begin() + static_cast<long>(tensors)});
  // Doubled keys are gone after the first decoding, so from here on nothing changes any more.
  Encoder first;
  Codec<T>::encode(first, value);
  Encoder second;
  Codec<T>::encode(second, decode<T>(first.payload(), tensors_of(first)));
  require(first.payload().size() <= bytes.size());
  require(first.payload().size() == second.payload().size());
  require(first.tensors().size() == second.tensors().size());
}

void check_prelude(uint8_t flags, std::span<const std::byte> bytes) {
  std::span<const std::byte> rest = bytes;
  const CallPrelude prelude = read_prelude(flags, rest);
  require(prelude.name.size() <= kMaxNameBytes);
  const PreludeBytes again(prelude);
  require(std::ranges::equal(again.bytes(), bytes.first(bytes.size() - rest.size())));
}

void check_failed(std::span<const std::byte> bytes) {
  const FailedReply failed = decode_failed(bytes);
  require(name(failed.code) != std::string("kUnknownErrorCode"));
  if (static_cast<uint8_t>(bytes[0]) != static_cast<uint8_t>(failed.code)) {
    return require(failed.code == ErrorCode::kBadMessage);  // a code of a later version
  }
  Encoder again;
  encode_failed(again, failed);
  if (std::max(failed.type.size(), failed.text.size()) > 64 * 1024) return;  // cut when sent
  require(std::ranges::equal(again.payload(), bytes));
}

void check(uint8_t what, std::span<const std::byte> bytes) {
  switch (what % 8) {
    case 0:
      return check_value<Rich>(bytes, (what >> 3) % 5);
    case 1:
      return check_prelude(0, bytes);
    case 2:
      return check_prelude(kNamed, bytes);
    case 3:
      return check_failed(bytes);
    case 4:
      return check_value<Tree>(bytes, 0);
    case 5:
      return check_value<std::vector<std::map<int8_t, std::variant<Tree, Nothing>>>>(bytes, 0);
    case 6:
      return check_value<std::vector<double>>(bytes, 0);
    case 7:
      return check_value<std::vector<at::Tensor>>(bytes, (what >> 3) % 5);
  }
}

}  // namespace
}  // namespace weft::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  if (size == 0) return 0;
  try {
    wire::check(data[0], std::as_bytes(std::span(data, size)).subspan(1));
  } catch (const Error& error) {
    wire::require(error.code() == ErrorCode::kBadMessage);
  }
  return 0;
}

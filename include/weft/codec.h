// How values become bytes: Codec<T> for every type that may be a parameter or a result.
//
// There are codecs for arithmetic types, enums, strings, optional, variant, pair, tuple, vector,
// array, map, set (ordered or not), chrono durations and system times, tensors, and any aggregate
// of these. For another type specialize weft::Codec with encode, decode and describe.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <boost/pfr/core.hpp>

#include "weft/detail/ref_counted.h"
#include "weft/error.h"
#include "weft/export.h"

namespace weft {

namespace detail {
class Arrival;
}

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

/// Collects the bytes and tensors of one message. The bytes of tensors are not copied: they are
/// sent from the memory of the tensor.
class WEFT_API Encoder {
 public:
  struct OutgoingTensor {
    at::Tensor keep;  // owns what `data` points to
    const void* data;
    size_t bytes;
    size_t row_end = 0;  // in tensor_entries()
    bool requires_grad = false;
    bool in_frame_only = false;  // not by a carrier
    bool borrowed = false;       // nobody changes it as long as the receiver has it
    bool staged = false;         // a carrier may give the receiver these bytes themselves
    at::Tensor original = {};    // the user's, if a carrier has copied it
  };

  Encoder();
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  void write(const void* data, size_t size) {
    if (size == 0) return;
    if (size > room()) grow(size);
    std::memcpy(end_, data, size);
    end_ += size;
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void scalar(T value) { write(&value, sizeof value); }
  /// A count of elements; throws kInvalidArgument beyond 2^32 - 1.
  void length(size_t count);
  /// Throws kInvalidArgument for a tensor that cannot travel (another device, quantized, ...).
  void tensor(const at::Tensor& tensor);
  /// A tensor that the receiver reads where it lies, if it can.
  void borrowed_tensor(const at::Tensor& tensor);

  /// Keeps `object` alive. In a call: until the call has its outcome. In a reply: until the
  /// receiver has accepted the references in it, at most for one lease.
  void keep(detail::Ref<detail::RefCounted> object) { kept_.push_back(std::move(object)); }
  const std::vector<detail::Ref<detail::RefCounted>>& kept() const { return kept_; }

  std::span<const std::byte> payload() const { return {begin_, end_}; }
  std::span<const std::byte> tensor_entries() const { return std::as_bytes(std::span(entries_)); }
  const std::vector<OutgoingTensor>& tensors() const { return tensors_; }
  std::vector<OutgoingTensor>& tensors() { return tensors_; }
  size_t tensor_bytes() const { return tensor_bytes_; }

 private:
  size_t room() const { return static_cast<size_t>(limit_ - end_); }
  void grow(size_t by);
  void strided(const at::Tensor& tensor);
  void sparse(const at::Tensor& tensor);

  std::byte* begin_;
  std::byte* end_;
  std::byte* limit_;
  std::vector<char> entries_;
  std::vector<OutgoingTensor> tensors_;
  size_t tensor_bytes_ = 0;
  std::vector<detail::Ref<detail::RefCounted>> kept_;
};

/// Reads what an Encoder wrote. The bytes may be wrong: methods throw kBadMessage and never read
/// past the end or allocate memory for a size that is only claimed.
class WEFT_API Decoder {
 public:
  Decoder(std::span<const std::byte> payload, std::span<at::Tensor> tensors,
          detail::Arrival* arrival = nullptr)
      : at_(payload.data()),
        end_(payload.data() + payload.size()),
        tensors_(tensors),
        arrival_(arrival) {}

  /// The call or reply that these bytes came with; null if they did not come with one.
  detail::Arrival* arrival() const { return arrival_; }

  void read(void* to, size_t size) {
    if (size > remaining()) fail_truncated(size);
    if (size == 0) return;
    std::memcpy(to, at_, size);
    at_ += size;
  }
  template <typename T>
  requires std::is_arithmetic_v<T> T scalar() {
    T value;
    read(&value, sizeof value);
    return value;
  }
  bool boolean();
  /// A count of elements. Throws kBadMessage if that many elements of `bytes_each` bytes cannot be
  /// in the remaining bytes.
  size_t length(size_t bytes_each);
  /// A count of elements of which each has at least one byte or one tensor.
  size_t sequence_length();
  at::Tensor tensor();
  size_t remaining() const { return static_cast<size_t>(end_ - at_); }
  std::span<const std::byte> rest() const { return {at_, end_}; }

  /// Throws kBadMessage unless everything was read.
  void finish() const;

  /// Lives while a nested value is decoded; throws if values nest too deep.
  class Nesting {
   public:
    explicit Nesting(Decoder& decoder) : decoder_(decoder) { decoder_.enter(); }
    ~Nesting() { --decoder_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Decoder& decoder_;
  };

  [[noreturn]] static void fail(const std::string& what);

 private:
  void enter();
  [[noreturn]] void fail_truncated(size_t wanted) const;

  const std::byte* at_;
  const std::byte* end_;
  std::span<at::Tensor> tensors_;
  detail::Arrival* arrival_;
  size_t next_tensor_ = 0;
  int depth_ = 0;
};

/// A description of a type's encoding. Types with equal descriptions have the same encoding.
class TypeDescription {
 public:
  void add(const char* text) { text_ += text; }
  /// Adds the description of T, or a reference back to it if T contains itself.
  template <typename T>
  void type();
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<const std::type_info*> open_;
};

template <typename T>
struct Codec;

template <typename T>
void TypeDescription::type() {
  for (size_t i = 0; i < open_.size(); ++i) {
    if (*open_[i] == typeid(T)) {
      text_ += "^" + std::to_string(open_.size() - i);
      return;
    }
  }
  open_.push_back(&typeid(T));
  Codec<T>::describe(*this);
  open_.pop_back();
}

namespace detail {

template <typename T>
concept PlainNumber = std::is_arithmetic_v<T> && !std::is_same_v<T, bool> &&
                      !std::is_same_v<T, long double>;  // has two formats of the same size

template <typename T>
concept PlainAggregate =
    std::is_aggregate_v<T> && std::is_class_v<T> && std::is_default_constructible_v<T>;

template <typename T>
constexpr const char* number_name() {
  if constexpr (std::is_same_v<T, char>) {
    return "c";  // signed on some machines, unsigned on others
  } else if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? "f4" : "f8";
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1 ? "i1" : sizeof(T) == 2 ? "i2" : sizeof(T) == 4 ? "i4" : "i8";
  } else {
    return sizeof(T) == 1 ? "u1" : sizeof(T) == 2 ? "u2" : sizeof(T) == 4 ? "u4" : "u8";
  }
}

// Elements whose bytes in memory are their encoding; a sequence of them is copied as a block.
template <typename T>
concept BlockCopied = PlainNumber<T> || std::is_same_v<T, std::byte>;

template <typename Container, typename Element>
struct SequenceCodec {
  static void encode(Encoder& out, const Container& values) {
    out.length(values.size());
    for (const auto& value : values) Codec<Element>::encode(out, value);
  }
  static Container decode(Decoder& in) {
    Decoder::Nesting nesting(in);
    Container values;
    for (size_t left = in.sequence_length(); left > 0; --left) {
      values.insert(values.end(), Codec<Element>::decode(in));
    }
    return values;
  }
  static void describe(TypeDescription& out) {
    out.add("[");
    out.type<Element>();
    out.add("]");
  }
};

template <typename... Ts>
void describe_all(TypeDescription& out, const char* open, const char* close) {
  out.add(open);
  ((out.type<Ts>(), out.add(",")), ...);
  out.add(close);
}

}  // namespace detail

template <detail::PlainNumber T>
struct Codec<T> {
  static void encode(Encoder& out, T value) { out.scalar(value); }
  static T decode(Decoder& in) { return in.scalar<T>(); }
  static void describe(TypeDescription& out) { out.add(detail::number_name<T>()); }
};

template <>
struct Codec<bool> {
  static void encode(Encoder& out, bool value) { out.scalar<uint8_t>(value ? 1 : 0); }
  static bool decode(Decoder& in) { return in.boolean(); }
  static void describe(TypeDescription& out) { out.add("b"); }
};

template <typename T>
requires std::is_enum_v<T>
struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static void encode(Encoder& out, T value) {
    Codec<Number>::encode(out, static_cast<Number>(value));
  }
  static T decode(Decoder& in) { return static_cast<T>(Codec<Number>::decode(in)); }
  static void describe(TypeDescription& out) { Codec<Number>::describe(out); }
};

template <>
struct Codec<std::string> {
  static void encode(Encoder& out, const std::string& value) {
    out.length(value.size());
    out.write(value.data(), value.size());
  }
  static std::string decode(Decoder& in) {
    std::string value(in.length(1), '\0');
    in.read(value.data(), value.size());
    return value;
  }
  static void describe(TypeDescription& out) { out.add("s"); }
};

template <>
struct Codec<at::Tensor> {
  static void encode(Encoder& out, const at::Tensor& value) { out.tensor(value); }
  static at::Tensor decode(Decoder& in) { return in.tensor(); }
  static void describe(TypeDescription& out) { out.add("t"); }
};

template <>
struct Codec<std::monostate> {
  static void encode(Encoder& out, std::monostate) { out.scalar<uint8_t>(0); }
  static std::monostate decode(Decoder& in) {
    in.scalar<uint8_t>();
    return {};
  }
  static void describe(TypeDescription& out) { out.add("0"); }
};

template <typename T>
struct Codec<std::optional<T>> {
  static void encode(Encoder& out, const std::optional<T>& value) {
    Codec<bool>::encode(out, value.has_value());
    if (value) Codec<T>::encode(out, *value);
  }
  static std::optional<T> decode(Decoder& in) {
    Decoder::Nesting nesting(in);
    if (!in.boolean()) return std::nullopt;
    return Codec<T>::decode(in);
  }
  static void describe(TypeDescription& out) { detail::describe_all<T>(out, "?", ""); }
};

template <typename... Ts>
struct Codec<std::variant<Ts...>> {
  using Value = std::variant<Ts...>;
  static_assert(sizeof...(Ts) <= 256, "the index of a variant travels in one byte");
  static void encode(Encoder& out, const Value& value) {
    out.scalar(static_cast<uint8_t>(value.index()));
    std::visit([&out](const auto& held) { Codec<std::decay_t<decltype(held)>>::encode(out, held); },
               value);
  }
  static Value decode(Decoder& in) {
    Decoder::Nesting nesting(in);
    return decode_at<0>(in, in.scalar<uint8_t>());
  }
  static void describe(TypeDescription& out) { detail::describe_all<Ts...>(out, "<", ">"); }

 private:
  template <size_t I>
  static Value decode_at(Decoder& in, size_t index) {
    if constexpr (I == sizeof...(Ts)) {
      Decoder::fail("variant index " + std::to_string(index) + " of " + std::to_string(I));
    } else {
      using Held = std::variant_alternative_t<I, Value>;
      if (index == I) return Value(std::in_place_index<I>, Codec<Held>::decode(in));
      return decode_at<I + 1>(in, index);
    }
  }
};

template <typename A, typename B>
struct Codec<std::pair<A, B>> {
  static void encode(Encoder& out, const std::pair<A, B>& value) {
    Codec<std::remove_const_t<A>>::encode(out, value.first);
    Codec<B>::encode(out, value.second);
  }
  static std::pair<A, B> decode(Decoder& in) {
    auto first = Codec<std::remove_const_t<A>>::decode(in);
    return {std::move(first), Codec<B>::decode(in)};
  }
  static void describe(TypeDescription& out) {
    detail::describe_all<std::remove_const_t<A>, B>(out, "(", ")");
  }
};

template <typename... Ts>
struct Codec<std::tuple<Ts...>> {
  static void encode(Encoder& out, const std::tuple<Ts...>& value) {
    std::apply([&out](const Ts&... each) { (Codec<Ts>::encode(out, each), ...); }, value);
  }
  static std::tuple<Ts...> decode(Decoder& in) {
    return std::tuple<Ts...>{Codec<Ts>::decode(in)...};  // braces: left to right
  }
  static void describe(TypeDescription& out) { detail::describe_all<Ts...>(out, "(", ")"); }
};

template <typename T>
struct Codec<std::vector<T>> : detail::SequenceCodec<std::vector<T>, T> {};

template <detail::BlockCopied T>
struct Codec<std::vector<T>> {
  static void encode(Encoder& out, const std::vector<T>& values) {
    out.length(values.size());
    out.write(values.data(), values.size() * sizeof(T));
  }
  static std::vector<T> decode(Decoder& in) {
    std::vector<T> values(in.length(sizeof(T)));
    in.read(values.data(), values.size() * sizeof(T));
    return values;
  }
  static void describe(TypeDescription& out) { detail::describe_all<T>(out, "[", "]"); }
};

template <>
struct Codec<std::vector<bool>> : detail::SequenceCodec<std::vector<bool>, bool> {};

template <typename T, size_t N>
struct Codec<std::array<T, N>> {
  static void encode(Encoder& out, const std::array<T, N>& values) {
    for (const T& value : values) Codec<T>::encode(out, value);
  }
  static std::array<T, N> decode(Decoder& in) {
    std::array<T, N> values{};
    for (T& value : values) value = Codec<T>::decode(in);
    return values;
  }
  static void describe(TypeDescription& out) {
    out.add(("a" + std::to_string(N)).c_str());
    out.type<T>();
  }
};

template <typename K, typename V>
struct Codec<std::map<K, V>> : detail::SequenceCodec<std::map<K, V>, std::pair<const K, V>> {};
template <typename K, typename V>
struct Codec<std::unordered_map<K, V>>
    : detail::SequenceCodec<std::unordered_map<K, V>, std::pair<const K, V>> {};
template <typename K>
struct Codec<std::set<K>> : detail::SequenceCodec<std::set<K>, K> {};
template <typename K>
struct Codec<std::unordered_set<K>> : detail::SequenceCodec<std::unordered_set<K>, K> {};

template <typename Rep, typename Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using Value = std::chrono::duration<Rep, Period>;
  static void encode(Encoder& out, Value value) { Codec<Rep>::encode(out, value.count()); }
  static Value decode(Decoder& in) { return Value(Codec<Rep>::decode(in)); }
  static void describe(TypeDescription& out) {
    out.add(("d" + std::to_string(Period::num) + "/" + std::to_string(Period::den)).c_str());
    out.type<Rep>();
  }
};

// Only system times: a steady time means nothing on another machine.
template <typename Duration>
struct Codec<std::chrono::time_point<std::chrono::system_clock, Duration>> {
  using Value = std::chrono::time_point<std::chrono::system_clock, Duration>;
  static void encode(Encoder& out, Value value) {
    Codec<Duration>::encode(out, value.time_since_epoch());
  }
  static Value decode(Decoder& in) { return Value(Codec<Duration>::decode(in)); }
  static void describe(TypeDescription& out) { detail::describe_all<Duration>(out, "@", ""); }
};

/// Any aggregate: its fields in order.
template <detail::PlainAggregate T>
struct Codec<T> {
  static void encode(Encoder& out, const T& value) {
    if constexpr (kFields == 0) out.scalar<uint8_t>(0);  // so that every value takes a byte
    boost::pfr::for_each_field(value, [&out](const auto& field) {
      Codec<std::decay_t<decltype(field)>>::encode(out, field);
    });
  }
  static T decode(Decoder& in) {
    Decoder::Nesting nesting(in);
    T value{};
    if constexpr (kFields == 0) in.scalar<uint8_t>();
    boost::pfr::for_each_field(
        value, [&in](auto& field) { field = Codec<std::decay_t<decltype(field)>>::decode(in); });
    return value;
  }
  static void describe(TypeDescription& out) {
    out.add("{");
    describe_fields(out, std::make_index_sequence<kFields>{});
    out.add("}");
  }

 private:
  static constexpr size_t kFields = boost::pfr::tuple_size_v<T>;
  template <size_t... I>
  static void describe_fields(TypeDescription& out, std::index_sequence<I...>) {
    ((out.type<boost::pfr::tuple_element_t<I, T>>(), out.add(",")), ...);
  }
};

}  // namespace weft

// Codecs of the types that libtorch's module options are made of: its enum tags (torch::kSum),
// ExpandingArray, and the optional and variant that versions before 2 have of their own.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <c10/util/Optional.h>
#include <torch/enum.h>
#include <torch/expanding_array.h>
#if __has_include(<c10/util/variant.h>)
#include <c10/util/variant.h>
#endif

#include "weft/codec.h"

namespace weft {

namespace detail {

template <typename T>
concept TorchTag = std::is_empty_v<T> && requires(const T& tag) {
  torch::enumtype::_compute_enum_name{}(tag);
};

template <typename Array>
struct ExpandingArrayCodec {
  using Values = std::decay_t<decltype(*std::declval<Array&>())>;  // a std::array
  static void encode(Encoder& out, const Array& value) { Codec<Values>::encode(out, *value); }
  static Array decode(Decoder& in) { return Array(Codec<Values>::decode(in)); }
  static void describe(TypeDescription& out) { Codec<Values>::describe(out); }
};

}  // namespace detail

// A tag carries no data: the variant that holds it says which tag it is. It takes one byte, because
// every value takes at least one.
template <detail::TorchTag T>
struct Codec<T> {
  static void encode(Encoder& out, const T&) { Codec<std::monostate>::encode(out, {}); }
  static T decode(Decoder& in) {
    Codec<std::monostate>::decode(in);
    return {};
  }
  static void describe(TypeDescription& out) {
    out.add(torch::enumtype::_compute_enum_name{}(T()).c_str());
  }
};

template <size_t D, typename T>
struct Codec<torch::ExpandingArray<D, T>>
    : detail::ExpandingArrayCodec<torch::ExpandingArray<D, T>> {};

template <size_t D, typename T>
struct Codec<torch::ExpandingArrayWithOptionalElem<D, T>>
    : detail::ExpandingArrayCodec<torch::ExpandingArrayWithOptionalElem<D, T>> {};

// These are encoded like their std counterparts, which later versions of libtorch use instead. So
// workers with different versions of libtorch understand each other.

template <typename T>
requires(!std::is_same_v<c10::optional<T>, std::optional<T>>) struct Codec<c10::optional<T>> {
  using Standard = std::optional<T>;
  static void encode(Encoder& out, const c10::optional<T>& value) {
    Codec<Standard>::encode(out, value ? Standard(*value) : std::nullopt);
  }
  static c10::optional<T> decode(Decoder& in) {
    Standard value = Codec<Standard>::decode(in);
    if (!value) return c10::nullopt;
    return std::move(*value);
  }
  static void describe(TypeDescription& out) { Codec<Standard>::describe(out); }
};

#if __has_include(<c10/util/variant.h>)
template <typename... Ts>
requires(
    !std::is_same_v<c10::variant<Ts...>, std::variant<Ts...>>) struct Codec<c10::variant<Ts...>> {
  using Standard = std::variant<Ts...>;
  static void encode(Encoder& out, const c10::variant<Ts...>& value) {
    c10::visit([&out](const auto& held) { Codec<Standard>::encode(out, Standard(held)); }, value);
  }
  static c10::variant<Ts...> decode(Decoder& in) {
    return std::visit([](auto&& held) { return c10::variant<Ts...>(std::move(held)); },
                      Codec<Standard>::decode(in));
  }
  static void describe(TypeDescription& out) { Codec<Standard>::describe(out); }
};
#endif

}  // namespace weft

// SPDX-License-Identifier: BSD-3-Clause
#include "wire/dtype.h"

#include <array>
#include <utility>

#include "wire/torch_version.h"

namespace weft::wire {

namespace {

using T = c10::ScalarType;
// Append only: a number's meaning never changes.
constexpr std::pair<uint8_t, T> kTypes[] = {
    {1, T::Byte},
    {2, T::Char},
    {3, T::Short},
    {4, T::Int},
    {5, T::Long},
    {6, T::Half},
    {7, T::Float},
    {8, T::Double},
    {9, T::ComplexHalf},
    {10, T::ComplexFloat},
    {11, T::ComplexDouble},
    {12, T::Bool},
    {13, T::BFloat16},
#if WEFT_TORCH_AT_LEAST(2, 3)
    {14, T::Float8_e5m2},
    {15, T::Float8_e4m3fn},
    {16, T::Float8_e5m2fnuz},
    {17, T::Float8_e4m3fnuz},
    {18, T::UInt16},
    {19, T::UInt32},
    {20, T::UInt64},
#endif
};

constexpr auto kToWire = [] {
  std::array<uint8_t, 256> table{};
  for (const auto& [number, type] : kTypes) table[static_cast<uint8_t>(type)] = number;
  return table;
}();

}  // namespace

std::optional<uint8_t> dtype_to_wire(c10::ScalarType type) {
  const uint8_t number = kToWire[static_cast<uint8_t>(type)];
  if (number == 0) return std::nullopt;
  return number;
}

std::optional<c10::ScalarType> dtype_from_wire(uint8_t number) {
  if (number == 0 || number > std::size(kTypes)) return std::nullopt;
  return kTypes[number - 1].second;
}

}  // namespace weft::wire

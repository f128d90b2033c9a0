// Features: abilities of a worker that not every worker of its version has. Numbered, one bit each.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>

namespace weft::wire {

/// A number's meaning never changes, and a number is never used twice. Version 3 has none yet: the
/// ways in which a tensor's bytes may come will be the first.
enum class Feature : uint8_t {};

/// A set of features, also of those that this build has no name for.
class Features {
 public:
  constexpr Features() = default;
  constexpr explicit Features(uint64_t bits) : bits_(bits) {}

  constexpr bool has(Feature feature) const { return (bits_ & bit(feature)) != 0; }
  constexpr Features with(Feature feature) const { return Features(bits_ | bit(feature)); }
  constexpr Features common_with(Features other) const { return Features(bits_ & other.bits_); }
  constexpr uint64_t bits() const { return bits_; }

  friend bool operator==(const Features&, const Features&) = default;

 private:
  static constexpr uint64_t bit(Feature feature) {
    return uint64_t{1} << static_cast<uint8_t>(feature);
  }
  uint64_t bits_ = 0;
};

/// The features in a hello of this build. A connection uses those that both hellos have.
inline constexpr Features kOfferedFeatures{};

}  // namespace weft::wire

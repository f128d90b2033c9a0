// Features: numbered abilities that not every worker of a protocol version has, one bit each.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>

namespace weft::wire {

/// The meaning of a number never changes, and a number is never used twice.
enum class Feature : uint8_t {
  // 0 was kSharedArena before loans had tickets.
  kSharedArena = 1,  // the rows of tensors may say that their bytes are in the sender's arena
};

/// A set of features. It may have some that this build does not know.
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

/// The features in the hello of this build. A connection uses the features that both hellos have.
inline constexpr Features kOfferedFeatures = Features().with(Feature::kSharedArena);

}  // namespace weft::wire

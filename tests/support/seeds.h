// Which seeds a simulation plays: 1 to N, or one that failed before.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "support/sanitizers.h"

namespace weft::test {

class Seeds {
 public:
  /// VARIABLE + "S" in the environment says how many, VARIABLE which single one.
  static Seeds of(const std::string& variable, uint64_t usual) {
    if (const char* one = std::getenv(variable.c_str()))
      return Seeds(std::strtoull(one, nullptr, 10), 1);
    const char* number = std::getenv((variable + "S").c_str());
    return Seeds(1, (number ? std::strtoull(number, nullptr, 10) : usual) / kSlowness);
  }
  static Seeds up_to(uint64_t number) { return Seeds(1, number); }

  /// The first seed that goes wrong, and how. `play(seed)` says what went wrong, if anything.
  template <typename F>
  std::optional<std::string> first_failure(const F& play) const {
    for (uint64_t seed = first_; seed < first_ + number_; ++seed) {
      if (const auto wrong = play(seed)) return "seed " + std::to_string(seed) + ": " + *wrong;
    }
    return std::nullopt;
  }

 private:
  Seeds(uint64_t first, uint64_t number) : first_(first), number_(number) {}
  const uint64_t first_, number_;
};

}  // namespace weft::test

// A place for small values under names, where the members of a group find each other.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace weft::rendezvous {

using Bytes = std::vector<uint8_t>;

/// Keys are at most 256 bytes, values 1 to 65,536 bytes. All operations end by their deadline or
/// shortly after it; they throw kUnavailable if the place could not be used until then, and at once
/// if waiting does not help.
class Store {
 public:
  virtual ~Store() = default;

  /// Replaces the value that the key has, if any.
  virtual void set(const std::string& key, const Bytes& value, base::Time deadline) = 0;
  /// The value as of now; does not wait for another member to set it.
  virtual std::optional<Bytes> find(const std::string& key, base::Time deadline) = 0;
  virtual void remove(const std::string& key, base::Time deadline) = 0;

  /// False after a failure that a store opened anew may not have.
  virtual bool usable() const { return true; }
};

}  // namespace weft::rendezvous

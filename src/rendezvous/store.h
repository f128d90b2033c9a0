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

/// Keys have at most 256 bytes, values 1 to 65,536. All operations end by their deadline or shortly
/// after it. They throw kUnavailable if the store could not be used until then, or at once if
/// waiting does not help.
class Store {
 public:
  virtual ~Store() = default;

  /// Replaces the value that the key has, if any. When it returns, others find the new one.
  virtual void set(const std::string& key, const Bytes& value, base::Time deadline) = 0;
  /// The current value; does not wait for another member to set it.
  virtual std::optional<Bytes> find(const std::string& key, base::Time deadline) = 0;
  virtual void remove(const std::string& key, base::Time deadline) = 0;

  /// False after a failure after which this object cannot be used any more. A new one may work.
  virtual bool usable() const { return true; }
};

}  // namespace weft::rendezvous

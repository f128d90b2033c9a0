// The name and rank of a worker.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <compare>
#include <functional>
#include <string>

namespace weft {

/// A member of the group: its name, unique in the group, and its rank.
struct WorkerInfo {
  std::string name;
  int id = -1;

  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
  friend auto operator<=>(const WorkerInfo&, const WorkerInfo&) = default;
};

}  // namespace weft

template <>
struct std::hash<weft::WorkerInfo> {
  size_t operator()(const weft::WorkerInfo& info) const noexcept {
    return std::hash<std::string>()(info.name) ^ static_cast<size_t>(info.id);
  }
};

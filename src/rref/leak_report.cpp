// SPDX-License-Identifier: BSD-3-Clause
#include "rref/leak_report.h"

#include <fmt/format.h>

namespace weft::rref {

std::vector<std::string> describe_leaks(const RRefCensus& census) {
  std::vector<std::string> lines;
  for (const RRefCensus::Owned& owned : census.owned) {
    std::string holders;
    for (const auto& [worker, count] : owned.held_by) {
      holders += fmt::format("{}{} ({})", holders.empty() ? "" : ", ", worker, count);
    }
    lines.push_back(fmt::format("at shutdown, {} objects of type {} are still referred to by {}",
                                owned.objects, owned.type,
                                holders.empty() ? "this worker itself" : holders));
  }
  for (const auto& [owner, count] : census.held) {
    lines.push_back(
        fmt::format("at shutdown, {} references to objects of {} are still held", count, owner));
  }
  return lines;
}

}  // namespace weft::rref

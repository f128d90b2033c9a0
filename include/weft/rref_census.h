// Counts of references, for people who look for objects that are never freed.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "weft/export.h"

namespace weft {

class Agent;

/// The objects that others refer to, and the references to others, of one worker.
struct RRefCensus {
  struct Owned {
    std::string type;
    size_t objects = 0;
    std::map<std::string, size_t> held_by;  // worker, how many of them
  };
  std::vector<Owned> owned;            // objects of this worker that others refer to, by type
  std::map<std::string, size_t> held;  // references to objects of others, by owner
};
WEFT_API RRefCensus rref_census();
WEFT_API RRefCensus rref_census(Agent& agent);

}  // namespace weft

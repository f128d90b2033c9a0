// Which way an all_reduce and a broadcast go. Pure functions.
//
// | way      | what a member sends                       | steps          | bytes it sends  |
// | ---      | ---                                       | ---            | ---             |
// | direct   | all it has, to every other member         | 1              | (n - 1) b       |
// | doubling | what it has, to one partner after another | log2 n, or     | log2(n) b       |
// |          |                                           | up to 2 more   |                 |
// | shares   | of each segment: one share to each other  | 2 of a segment | 2 b (n - 1) / n |
// |          | member, which that member reduces; then   |                |                 |
// |          | the share that it has reduced itself      |                |                 |
//
// n members reduce b bytes. A step costs the time of a message and of waking a thread, so few bytes
// go in few steps. Much goes by shares, which move the fewest bytes, and in segments: while members
// reduce one segment the next is on its way, and its chunks are still in the cache of a core when
// they are used. Segments are for few members: more keep all cores of a host busy anyway, and each
// segment makes all of them wait for each other twice.
//
// A broadcast goes from the root to all others. Much goes from the root to few, and from them on:
// the members form a binomial tree, in which nobody sends more often than log2 n times.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "collective/algorithms/algorithm.h"
#include "weft/process_group.h"

namespace weft::collective {

struct AllReduceChoice {
  AllReduceWay way = AllReduceWay::kDirect;
  size_t segments = 1;  // of kShares
};

/// All members must come to the same choice, so it depends on what they agree about.
AllReduceChoice choose_all_reduce(AllReduceWay wanted, int64_t bytes, size_t members);

/// Where one member is in the tree of a broadcast.
struct BroadcastTree {
  std::optional<size_t> parent;  // none: the root
  std::vector<size_t> children;  // those with the most descendants first
};
BroadcastTree broadcast_tree(Place place, size_t root);

}  // namespace weft::collective

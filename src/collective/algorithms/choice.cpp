// SPDX-License-Identifier: BSD-3-Clause
#include "collective/algorithms/choice.h"

#include <algorithm>
#include <bit>

namespace weft::collective {

namespace {

// Up to so many bytes a message less is worth more than bytes that are sent and added more than
// once. Two members send equally much in both ways, so their limit is higher.
constexpr int64_t kFewBytes = 64 * 1024;
constexpr int64_t kFewBytesOfTwo = 1024 * 1024;
// So many members send each other all they have. Beyond, messages cost more than further steps.
constexpr size_t kFewMembers = 7;
// So many members reduce in segments.
constexpr size_t kMembersWithSegments = 8;
// A share of a segment.
constexpr int64_t kShareBytes = 2048 * 1024;
// An operation has at most 255 phases, and a segment has two.
constexpr int64_t kMostSegments = 64;

size_t segments_of(int64_t bytes, size_t members) {
  if (members > kMembersWithSegments) return 1;
  const int64_t segment = kShareBytes * static_cast<int64_t>(members);
  return static_cast<size_t>(
      std::clamp((bytes + segment - 1) / segment, int64_t{1}, kMostSegments));
}

AllReduceWay best_way(int64_t bytes, size_t members) {
  if (members == 1) return AllReduceWay::kShares;
  if (bytes > (members == 2 ? kFewBytesOfTwo : kFewBytes)) return AllReduceWay::kShares;
  return members <= kFewMembers ? AllReduceWay::kDirect : AllReduceWay::kDoubling;
}

}  // namespace

AllReduceChoice choose_all_reduce(AllReduceWay wanted, int64_t bytes, size_t members) {
  // One member has nobody to send to: its one share is all there is.
  const bool is_free = wanted != AllReduceWay::kAutomatic && members > 1;
  const AllReduceWay way = is_free ? wanted : best_way(bytes, members);
  return {way, way == AllReduceWay::kShares ? segments_of(bytes, members) : 1};
}

// Counted from the root, the parent of a member has the same number without its lowest bit.
BroadcastTree broadcast_tree(Place place, size_t root) {
  const size_t own = (place.own + place.size - root) % place.size;
  const auto place_of = [&](size_t number) { return (number + root) % place.size; };
  BroadcastTree tree;
  if (own > 0) tree.parent = place_of(own & (own - 1));
  const size_t end = own > 0 ? own & -own : std::bit_ceil(place.size);
  for (size_t bit = end / 2; bit > 0; bit /= 2) {
    if (own + bit < place.size) tree.children.push_back(place_of(own + bit));
  }
  return tree;
}

}  // namespace weft::collective

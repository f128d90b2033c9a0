// One measured row of the table, printed as a line of JSON.
// SPDX-License-Identifier: BSD-3-Clause

#pragma once

#include <string>
#include <vector>

namespace bench {

/// What the row must reach, and which figure is held against it.
struct Bar {
  enum class Figure {
    kWeftOverAnchor,  // times: at most; rates: at least
    kAnchorOverWeft,  // how many times faster than the anchor
    kWeftAlone,       // no ratio: the value itself
  };
  enum class Side { kAtMost, kAtLeast, kNone };

  Figure figure;
  Side side;
  double limit;
};

constexpr Bar at_most(double limit) {
  return {Bar::Figure::kWeftOverAnchor, Bar::Side::kAtMost, limit};
}
constexpr Bar at_least(double limit) {
  return {Bar::Figure::kWeftOverAnchor, Bar::Side::kAtLeast, limit};
}
constexpr Bar times_faster(double limit) {
  return {Bar::Figure::kAnchorOverWeft, Bar::Side::kAtLeast, limit};
}
/// A figure to be seen beside the anchor's.
constexpr Bar no_bar() { return {Bar::Figure::kWeftOverAnchor, Bar::Side::kNone, 0}; }
constexpr Bar value_at_most(double limit) {
  return {Bar::Figure::kWeftAlone, Bar::Side::kAtMost, limit};
}

struct Row {
  int number;
  std::string what;
  std::string anchor;
  std::string unit;
  Bar bar;
  std::vector<double> anchor_samples;  // one per round; empty: there is nothing to compare with
  std::vector<double> weft_samples;    // empty: anchors only
  std::string note;
};

void print(const Row& row);

enum class Absence { kAllowed, kFailure };

/// Prints a row that could not be measured. `absence` says whether the run as a whole failed by it.
void print_not_measured(int number, const std::string& what, const std::string& reason,
                        Absence absence);

/// Prints what only the executable knows about the host: the libtorch it was built with.
void print_facts();

}  // namespace bench
